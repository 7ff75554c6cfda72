"""`edriver.launch` in a notebook, with a real kernel: what is called stands in cells, and in no file."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from nbclient import NotebookClient

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(300)]

SUM = """
import edriver, torch, torch.distributed as dist

offset = 100

class Answer:
    def __init__(self, rank, total):
        self.rank, self.total = rank, total

def add_up(each):
    total = torch.tensor([float(edriver.rank() + each + offset)])
    dist.all_reduce(total)
    print(f"rank {edriver.rank()} of {edriver.size()} says hello")
    return Answer(edriver.rank(), total.item())
"""

ELASTIC = """
@edriver.run
def train(state):
    for state.step in range(state.step + 1, 6):
        state.optimizer.zero_grad()
        state.model(torch.ones(1, 2)).sum().backward()
        state.optimizer.step()
        state.commit()
    return state.step

def work():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train(edriver.TorchState(model=model, optimizer=optimizer, step=0))
"""

BROKEN = """
def fail():
    raise ValueError(f"rank {edriver.rank()} has a bug")

edriver.launch(fail, np=2)
"""


@pytest.fixture
def notebook() -> Iterator[NotebookClient]:
    """A notebook without cells, and its kernel."""
    import nbformat
    from nbclient import NotebookClient

    client = NotebookClient(nbformat.v4.new_notebook(), timeout=200, kernel_name="python3")
    with client.setup_kernel():
        yield client


def run(notebook: NotebookClient, source: str) -> str:
    """Execute a new cell; returns what it shows."""
    import nbformat

    cell = nbformat.v4.new_code_cell(source)
    notebook.nb.cells.append(cell)
    notebook.execute_cell(cell, len(notebook.nb.cells) - 1)
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def test_functions_and_classes_of_cells_are_called_in_workers(notebook: NotebookClient) -> None:
    run(notebook, SUM)
    shown = run(notebook, "[(found.rank, found.total) for found in edriver.launch(add_up, (1,), np=2)]")
    assert "[(0, 203.0), (1, 203.0)]" in shown
    assert "rank 1 of 2 says hello" in shown
    run(notebook, ELASTIC)
    assert "[5, 5]" in run(notebook, "edriver.launch(work, np=2)")


def test_the_progress_is_one_output_of_the_cell(notebook: NotebookClient) -> None:
    run(notebook, SUM)
    run(notebook, ELASTIC)
    run(notebook, "edriver.launch(work, np=2);")
    (progress,) = [each for each in notebook.nb.cells[-1].outputs if each.output_type == "display_data"]
    assert re.fullmatch(r"step 5  .* steps/s  2 workers", progress["data"]["text/plain"])


def test_a_bug_of_a_cells_function_is_raised_in_the_cell(notebook: NotebookClient) -> None:
    from nbclient.exceptions import CellExecutionError

    run(notebook, SUM)
    with pytest.raises(CellExecutionError, match="ValueError: rank 0 has a bug") as caught:
        run(notebook, BROKEN)
    where = r'ipykernel_\d+/\d+\.py", line \d, in fail\n    raise ValueError\(f"rank {edriver\.rank\(\)} has a bug"\)\n'
    assert re.search(where, str(caught.value))


def test_an_interrupted_cell_leaves_no_process(notebook: NotebookClient) -> None:
    from nbclient.exceptions import CellExecutionError

    run(notebook, SUM)
    kernel = psutil.Process(int(run(notebook, "import os; print(os.getpid())")))
    interrupt = f"""
import threading, signal

def wait():
    print("waits", flush=True)
    threading.Event().wait()

threading.Timer(8, os.kill, ({kernel.pid}, {int(signal.SIGINT)})).start()  # as the notebook's stop button does
edriver.launch(wait, np=2)
"""
    with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
        run(notebook, interrupt)
    assert [child for child in kernel.children(recursive=True) if child.is_running()] == []
