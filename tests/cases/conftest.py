"""What the cases share: the fixtures of statements, producers, races and workers."""

import psycopg
import pytest

from tests.cases.gate import SHUT
from tests.conftest import Connect
from tests.producer.conftest import committed, kicks, mark, producer, watch
from tests.race.conftest import at_once, background, blocked, isolation, job, locked, rows
from tests.worker.conftest import drain, look, put, statements, tasks, value

__all__ = [
    "at_once",
    "background",
    "blocked",
    "committed",
    "drain",
    "isolation",
    "job",
    "kicks",
    "locked",
    "look",
    "mark",
    "producer",
    "put",
    "rows",
    "statements",
    "tasks",
    "value",
    "watch",
]


@pytest.fixture
def holder(connect: Connect) -> psycopg.Connection:
    """A session that has shut the gate."""
    conn = connect()
    conn.execute(SHUT)
    return conn
