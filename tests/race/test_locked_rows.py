"""A row that somebody else has locked: the others go on, and it is waited for within the lease."""

import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from pgq_core import Job, fence
from pgq_core.claim import claim
from pgq_core.reaper import reclaim
from tests.conftest import Connect
from tests.sql.conftest import Background, Locked
from tests.sql.rows import Rows
from tests.sql.verbs import COMPLETE, VERBS, Verb

MINUTE = timedelta(minutes=1)
ISOLATED = {
    "repeatable read": r"-c default_transaction_isolation=repeatable\ read",
    "serializable": "-c default_transaction_isolation=serializable",
}


@pytest.fixture
def blocked(background: Background, monkeypatch: pytest.MonkeyPatch) -> Background:
    """Begin a write in a thread; return when it has found the row locked and looks again."""
    looked = threading.Event()

    def sleep(seconds: float) -> None:
        looked.set()
        time.sleep(seconds)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(fence, "time", clock)

    def begin(*call: Any) -> Any:
        written = background(*call)
        assert looked.wait(10)
        return written

    return begin


every_verb = pytest.mark.parametrize("verb", VERBS, ids=str)


def test_one_locked_row_does_not_hold_up_the_completion_of_nine_others(
    conn: psycopg.Connection, rows: Rows, locked: Locked, blocked: Background
) -> None:
    rows.add(10)
    batch = claim(conn, "default", 10, MINUTE)
    with locked(batch[4].id):
        done = blocked(fence.complete, conn, batch)
        assert rows.statuses().count("done") == 9
        assert rows.read(batch[4])["status"] == "running"
    assert done.result(timeout=10) == {job.id for job in batch}
    assert rows.statuses().count("done") == 10


@every_verb
def test_a_write_waits_for_a_row_that_is_locked_for_a_moment(
    rows: Rows, job: Job, verb: Verb, locked: Locked, blocked: Background, connect: Connect
) -> None:
    conn = connect()
    with locked(job.id):
        written = blocked(verb, conn, job)
    assert written.result(timeout=10)
    assert rows.read(job)["status"] == verb.leaves
    assert conn.execute("SHOW lock_timeout").fetchone() == ("0",)


@every_verb
def test_a_write_does_not_wait_for_a_row_that_is_no_longer_its_own(
    rows: Rows, job: Job, verb: Verb, locked: Locked, background: Background, connect: Connect
) -> None:
    rows.expire(job)
    reclaim(rows.conn)
    with locked(job.id):
        assert not background(verb, connect(), job).result(timeout=10)


@every_verb
def test_a_write_waits_for_a_locked_row_no_longer_than_its_lease(
    conn: psycopg.Connection, rows: Rows, verb: Verb, locked: Locked
) -> None:
    rows.add(2)
    job, neighbour = claim(conn, "default", 2, timedelta(milliseconds=300))
    with locked(job.id):
        assert not verb(conn, job)
        assert -20 < rows.seconds_to(job, "locked_until") <= 0
    assert rows.read(job)["status"] == "running"
    assert conn.info.transaction_status == TransactionStatus.IDLE
    assert COMPLETE(conn, neighbour)


@every_verb
def test_a_write_that_waited_is_refused_when_the_job_was_taken_meanwhile(
    rows: Rows, job: Job, verb: Verb, locked: Locked, blocked: Background, connect: Connect
) -> None:
    with locked(job.id) as other:
        written = blocked(verb, connect(), job)
        other.execute("UPDATE pgq_core.jobs SET attempts = 2 WHERE id = %s", [job.id])
    assert not written.result(timeout=10)
    assert rows.read(job)["status"] == "running"


@pytest.mark.parametrize("wait", [timedelta(0), timedelta(milliseconds=50)], ids=str)
def test_a_write_waits_no_longer_than_it_is_told_to(
    conn: psycopg.Connection, rows: Rows, locked: Locked, wait: timedelta
) -> None:
    rows.add(3)
    batch = claim(conn, "default", 3, MINUTE)
    with locked(batch[0].id):
        written = fence.write(conn, "complete", batch, wait=wait)
    assert written == dict.fromkeys([batch[1].id, batch[2].id], "done")
    assert rows.read(batch[0])["status"] == "running"


@pytest.mark.parametrize("options", ISOLATED.values(), ids=ISOLATED)
def test_a_write_that_waited_is_tried_again_on_a_new_snapshot(
    job: Job, locked: Locked, blocked: Background, connect: Connect, options: str
) -> None:
    """What changed the row meanwhile was not a new claim: the job is still held."""
    with locked(job.id) as other:
        done = blocked(COMPLETE, connect(options=options), job)
        other.execute("UPDATE pgq_core.jobs SET headers = '{}' WHERE id = %s", [job.id])
    assert done.result(timeout=10)
