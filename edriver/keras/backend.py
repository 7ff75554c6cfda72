"""Which backend keras has: with another one than torch, nothing here would work, with unhelpful errors."""

from __future__ import annotations

import os
from typing import Final

_WAY_OUT: Final = (
    "set KERAS_BACKEND=torch before keras is imported. A script for TensorFlow runs in edriver's restart mode, without "
    "edriver.keras: `edriver --mode restart`, with tf.distribute.MultiWorkerMirroredStrategy, which reads TF_CONFIG"
)


def require_torch() -> None:
    """See that keras runs on torch.

    Raises:
        ImportError: keras is not there, or has another backend; names the way out.
    """
    asked = os.environ.get("KERAS_BACKEND", "torch")
    if asked != "torch":
        raise ImportError(
            f"edriver.keras needs Keras 3 with its torch backend, and KERAS_BACKEND is {asked!r}: {_WAY_OUT}"
        )
    try:
        import keras
    except ImportError as error:  # keras's default backend is TensorFlow, which is then missing
        raise ImportError(
            f"edriver.keras needs Keras 3 (pip install keras==3.15.1) with its torch backend, and keras cannot be "
            f"imported ({error}): {_WAY_OUT}"
        ) from error
    if keras.backend.backend() != "torch":
        raise ImportError(
            f"edriver.keras needs Keras 3 with its torch backend, and keras has been imported with "
            f"{keras.backend.backend()!r}: {_WAY_OUT}"
        )


require_torch()
