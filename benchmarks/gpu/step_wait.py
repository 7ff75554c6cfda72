"""What it costs that an optimizer's step begins once the device has the gradients.

    python -m benchmarks.gpu.step_wait DEVICE        prints one JSON object: seconds by name

Each figure is the median of a step among STEPS in a row, of which only the end of the last is waited for; `waited` is
with TorchState's own wait before the optimizer's step. `launches` are layers so small that the host takes longer to ask
for them than the device to compute them: there the host gains nothing by running ahead, and loses nothing. `device`
keeps the device busy, and `between` has steps of which both take about as long. The two are measured in turns.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from edriver.worker.state.device_mark import DeviceMark
from edriver.worker.state.torch_state import recorded

REPEATS, STEPS = 5, 20
MODELS = {"launches": (48, 128, 64), "between": (48, 1024, 256), "device": (24, 3200, 512)}
"""How many layers, of which width, and samples a step."""


def main() -> None:
    """Measure, and print."""
    device = sys.argv[1]
    models = MODELS if device == "cuda" else {"launches": MODELS["launches"]}
    print(
        json.dumps({name: value for model, shape in models.items() for name, value in measured(model, device, shape)})
    )


def measured(name: str, device: str, shape: tuple[int, int, int]) -> list[tuple[str, float]]:
    """A step's time with one model, without the wait and with it."""
    layers, width, samples = shape
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    inputs = torch.randn(samples, width, device=device)
    mark = DeviceMark(recorded)

    def seconds(before_step: Callable[[], object]) -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(model(inputs).square().mean())
            before_step()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / STEPS

    seconds(mark.wait)  # the first allocates
    pairs = [(seconds(lambda: None), seconds(mark.wait)) for _ in range(REPEATS)]
    return [(name, median(one for one, _ in pairs)), (f"{name}, waited", median(one for _, one in pairs))]


if __name__ == "__main__":
    main()
