"""A state whose attributes a type checker knows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from edriver.worker.state.torch_state import TorchState

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    from edriver.worker.state.state import State

    @dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
    class TypedState(State):
        """The class as type checkers see it: with the declared attributes only. See below."""

        from_rank_0: ClassVar[tuple[str, ...]]

        @property
        def has_commit(self) -> bool: ...
        def save(self) -> None: ...
        def restore(self) -> None: ...
        def sync(self) -> bool | None: ...
        def reset(self) -> None: ...
        def digest(self, committed: bool) -> str: ...

else:

    class TypedState(TorchState):
        """A TorchState whose attributes are declared, like those of a dataclass:

            class Training(edriver.TypedState):
                model: Net
                optimizer: torch.optim.AdamW
                epoch: int = 0

            state = Training(model=model, optimizer=optimizer)

        A type checker then knows `state.model`, and finds `state.epcoh += 1` and `state.comit()`. Declare mutable
        defaults as `dataclasses.field(default_factory=list)`. Pass all attributes by name.

        Attributes:
            from_rank_0: names of the attributes whose value all workers take from rank 0; see ObjectState.

        Raises:
            TypeError: an attribute is not declared, or one without a default is missing; see also TorchState.
            ValueError: a declared name starts with an underscore or is an attribute of this class.
        """

        from_rank_0: ClassVar[tuple[str, ...]] = ()

        def __init_subclass__(cls) -> None:
            super().__init_subclass__()
            dataclasses.dataclass(kw_only=True, init=False, repr=False, eq=False)(cls)
            for field in dataclasses.fields(cls):
                if field.name in vars(cls):
                    delattr(cls, field.name)  # each instance gets its own default object

        def __init__(self, **values: Any) -> None:
            declared = {field.name: field for field in dataclasses.fields(self)} if type(self) is not TypedState else {}
            if unknown := sorted(values.keys() - declared.keys()):
                raise TypeError(f"{type(self).__name__} declares no attribute {unknown[0]!r}")
            for name, field in declared.items():
                if name in values:
                    continue
                if field.default is not dataclasses.MISSING:
                    values[name] = field.default
                elif field.default_factory is not dataclasses.MISSING:
                    values[name] = field.default_factory()
                else:
                    text = f"{type(self).__name__} needs a value for {name!r}, which it declares without a default"
                    raise TypeError(text)
            super().__init__(from_rank_0=self.from_rank_0, **values)
