"""What the demo shows: lines with the time, a progress bar on a terminal, a table at the end."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
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
    def progress(self, total: int, look: Look) -> Iterator["Watch"]:
        """Show how far things are for as long as the block lasts."""
        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
        terminal = self._console.is_terminal
        with Progress(*columns, console=self._console, disable=not terminal) as bar:
            watch = Watch(show=self, bar=bar, task=bar.add_task("", total=total), look=look)
            yield watch
            watch.draw()

    def table(self, figures: Sequence[tuple[str, str, str]]) -> None:
        """Print name, figure and source of each."""
        table = Table("", "", "read from", show_edge=False)
        table.columns[1].justify = "right"
        for row in figures:
            table.add_row(*row)
        self._console.print()
        self._console.print(table)
        self._console.print()


@dataclass(kw_only=True)
class Watch:
    """Look at things again and again, and draw the bar; without a terminal, say it now and then."""

    show: Show
    bar: Progress
    task: TaskID
    look: Look
    looked: float = 0.0
    spoken: float = 0.0

    def wait(self, until: float) -> None:
        """Return at that instant of the monotonic clock, at once if it is past."""
        while True:
            if time.monotonic() - self.looked > FRAME:
                self.draw()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, FRAME))

    def draw(self) -> None:
        """Look, and show it."""
        completed, line = self.look()
        self.bar.update(self.task, completed=completed, description=line)
        self.looked = time.monotonic()
        if self.bar.disable and self.looked - self.spoken > PLAIN:
            self.spoken = self.looked
            self.show.say(f"{completed} finished, {line}")
