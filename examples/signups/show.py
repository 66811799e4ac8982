"""What the demo shows: lines with the time, a progress bar on a terminal, a table at the end."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

FRAME = 0.2  # s between two looks
PLAIN = 5.0  # s between two lines where there is no terminal

Look = Callable[[], tuple[int, str]]  # how many are finished, and a line about it


class Show:
    """Speak to whoever started the demo."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._started = time.monotonic()

    def seconds(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Print a line with the time; from any thread."""
        self._console.print(f"{self.seconds():5.1f} s  {text}", markup=False)

    @contextmanager
    def progress(self, total: int, look: Look) -> Iterator[Callable[[float], None]]:
        """Show how far *look* says that things are, while the block calls what this gives: `wait`.

        `wait(until)` returns at that instant of the monotonic clock, at once if it is past.
        """
        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
        with Progress(
            *columns, console=self._console, disable=not self._console.is_terminal
        ) as bar:
            task = bar.add_task("", total=total)
            spoken = looked = 0.0

            def draw() -> None:
                nonlocal spoken, looked
                completed, line = look()
                bar.update(task, completed=completed, description=line)
                looked = time.monotonic()
                if bar.disable and looked - spoken > PLAIN:
                    spoken = looked
                    self.say(f"{completed} of {total} finished; {line}")

            def wait(until: float) -> None:
                while True:
                    if time.monotonic() - looked > FRAME:
                        draw()
                    left = until - time.monotonic()
                    if left <= 0:
                        return
                    time.sleep(min(left, FRAME))

            yield wait
            draw()

    def table(self, figures: Sequence[tuple[str, str, str]]) -> None:
        """Print name, figure and source of each."""
        table = Table("", "", "read from", show_edge=False)
        table.columns[1].justify = "right"
        for row in figures:
            table.add_row(*row)
        self._console.print()
        self._console.print(table)
        self._console.print()
