"""What the cases share: the fixtures of the statements', the races' and the worker's tests."""

from tests.race.conftest import at_once, background, blocked, isolation, job, locked, rows
from tests.worker.conftest import drain, look, put, statements, tasks, value

__all__ = [
    "at_once",
    "background",
    "blocked",
    "drain",
    "isolation",
    "job",
    "locked",
    "look",
    "put",
    "rows",
    "statements",
    "tasks",
    "value",
]
