"""The training progress, as one line at the bottom of a terminal. Drawn by rich; imported only where there is one."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edriver.text.printable import printable
from edriver.text.progress_text import epoch_text, progress_words
from edriver.v1 import status_pb2

BAR_COLUMNS: Final = 20
"""Columns of the bar itself, if no more than a third of the terminal."""


class Bar:
    """Puts the progress into a line that fits.

    Args:
        console: of the terminal; its width is asked for again each time, its colours are as NO_COLOR and TERM say.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def line(self, progress: status_pb2.Progress, size: int, trouble: str = "") -> bytes:
        """One line, without its end, narrower than the terminal; empty if nothing of the progress is known.

        Args:
            progress: the progress of training.
            size: the number of workers that train.
            trouble: why no step is made; empty while steps are made.
        """
        text = printable(trouble) or "  ".join(progress_words(progress, size))
        if not text:
            return b""
        width = max(1, self._console.width - 1)  # in the last column, some terminals continue to the next line
        grid = Table.grid(padding=(0, 1), expand=True)
        cells: list[Text | ProgressBar] = []
        if progress.HasField("epoch") and progress.samples:
            epoch = Text(epoch_text(progress))
            grid.add_column(no_wrap=True, width=epoch.cell_len)
            grid.add_column(no_wrap=True, width=min(BAR_COLUMNS, width // 3))
            cells = [epoch, ProgressBar(total=progress.samples, completed=progress.samples_done)]
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        grid.add_row(*cells, Text(text))
        with self._console.capture() as drawn:
            self._console.print(grid, width=width, no_wrap=True, crop=True)
        first = drawn.get().partition("\n")[0]
        return first.encode(self._console.encoding, "replace")


def bar_of_stderr() -> Bar | None:
    """A bar for standard error; None if that is not a terminal that can redraw a line."""
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal and not console.is_dumb_terminal else None
