"""A day of traffic: recorded once into trace.csv, by `python -m bench.trace`, from a seed.

A quiet night, a trickle from seven to eleven, three bursts. One row is one commit of the
application: its second of the day, whether it enqueues a job, after how many seconds that is due,
and how many of its attempts fail.
"""

import csv
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("trace.csv")
DAY = 86_400
CRON = "30 2 * * *"
_BURSTS = {9 * 3600: 150, 12 * 3600 + 1800: 80, 18 * 3600: 200}  # jobs, five a second
_NIGHT = (1 * 3600 + 711, 3 * 3600 + 2400, 5 * 3600 + 95)
_GAP = 360  # s, of the trickle, on average
_DELAYS = (600, 3600, 4 * 3600)


class Commit(NamedTuple):
    """One transaction of the application."""

    at: float
    job: int
    delay: int
    fails: int


def day(seed: int = 7) -> Iterator[Commit]:
    """Make the day."""
    dice = random.Random(seed)  # noqa: S311 - it must come out the same again
    instants = [float(at) for at in _NIGHT]
    at = 7 * 3600.0
    while (at := at + dice.expovariate(1 / _GAP)) < 23 * 3600:
        instants.append(at)
    for begins, jobs in _BURSTS.items():
        instants += [begins + n / 5 + dice.random() / 5 for n in range(jobs)]
    for one in sorted(instants):
        fails = dice.choices((0, 1, 2), (94, 5, 1))[0]
        delay = dice.choice(_DELAYS) if dice.random() < 0.03 else 0  # noqa: PLR2004
        yield Commit(round(one, 2), int(dice.random() < 0.8), delay, fails)  # noqa: PLR2004


def read() -> list[Commit]:
    """Return the recorded day."""
    with FILE.open(newline="") as lines:
        rows = csv.DictReader(lines)
        return [Commit(float(r["at"]), *(int(r[k]) for k in Commit._fields[1:])) for r in rows]


if __name__ == "__main__":
    with FILE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Commit._fields, *day()])
