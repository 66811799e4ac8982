"""The run for deadlocks, short: it finds none, and it would."""

from unittest.mock import Mock

import pytest
from psycopg.errors import DeadlockDetected

from bench.deadlocks import Crowd, run_crowd
from pgq_core import db

RISING = b'ORDER BY queue COLLATE "C", unique_key COLLATE "C", place'
ACTS = {"put", "take", "settle", "maintain", "steer", "wake", "cron", "look"}
HELD = b"ORDER BY jobs.id\n    FOR NO KEY UPDATE OF jobs SKIP LOCKED"


def test_a_second_of_everything_at_once_has_no_deadlock(empty_dsn: str) -> None:
    done, deadlocks = run_crowd(empty_dsn, 1)
    assert len(done) == 8
    assert deadlocks == 0


@pytest.mark.parametrize(
    ("acts", "old", "new"),
    [
        (["put"], RISING, b"ORDER BY random()"),
        (
            ["put", "take", "settle"],
            HELD,
            b"ORDER BY random()\n    FOR NO KEY UPDATE OF jobs",
        ),
    ],
    ids=["enqueue", "settle"],
)
def test_statements_that_lock_in_any_order_are_found_out(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch, acts: list[str], old: bytes, new: bytes
) -> None:
    """Nobody does anything else meanwhile, or it could take half a minute."""
    for idle in ACTS - {*acts}:
        monkeypatch.setattr(Crowd, idle, Mock(__name__=idle))
    read = db.statement
    monkeypatch.setattr(db, "statement", lambda name: read(name).replace(old, new))
    with pytest.raises(DeadlockDetected):
        run_crowd(empty_dsn, 30)  # it ends with the first
