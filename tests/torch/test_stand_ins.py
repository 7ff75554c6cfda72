"""The stand-ins of tests/torch_stand_ins.py: training uses none of them, and each becomes what it stands for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

USES = """
import importlib.util, io, sys
from tests import torch_stand_ins
import torch

def stand_ins():
    return {name for name, module in sys.modules.items() if isinstance(module, torch_stand_ins._StandIn)}

ones, before = torch.ones(2), stand_ins()
assert {"torch._higher_order_ops", "torch._higher_order_ops.invoke_subgraph", "torch.func"} <= before, before
model = torch.nn.Linear(2, 1)
model(ones).backward()
torch.optim.Adam(model.parameters()).step()
assert stand_ins() - {"torch._dynamo"} == before, before - stand_ins()
torch.save(model.state_dict(), saved := io.BytesIO())
saved.seek(0)
assert torch.load(saved, weights_only=True).keys() == model.state_dict().keys()
assert before <= stand_ins(), before - stand_ins()

import torch.distributed.fsdp, torch.distributed.checkpoint
from torch.distributed.tensor._ops import _tensor_ops
assert "sympy" not in sys.modules
assert _tensor_ops.statically_known_true(True) and not _tensor_ops.statically_known_true(2 == 3)
assert "sympy" not in sys.modules
from torch.fx.experimental.symbolic_shapes import ShapeEnv
size = ShapeEnv().create_unbacked_symint()
assert not _tensor_ops.statically_known_true(size == 3) and _tensor_ops.statically_known_true(size == size)
from torch.fx.experimental import proxy_tensor  # no stand-in, but in circles with some
assert proxy_tensor.__spec__.loader is proxy_tensor.__loader__
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode() as mode:
    assert type(torch.ones(2)).__name__ == "FakeTensor"
    assert torch._guards.detect_fake_mode() is mode
assert torch.vmap(lambda x: x + 1)(ones).tolist() == [2, 2]  # torch took it by name from a stand-in
for name in torch_stand_ins.UNUSED - {torch_stand_ins.COMPILER}:  # which takes seconds
    if importlib.util.find_spec(name):  # dill and opt_einsum may not be installed
        assert not hasattr(importlib.import_module(name), "no_such_name")
assert stand_ins() <= {torch_stand_ins.COMPILER}, stand_ins()
"""


def test_training_uses_none_and_each_becomes_the_real_module() -> None:
    done = subprocess.run(
        [sys.executable, "-c", USES], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
