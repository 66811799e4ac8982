"""Producers side by side: one job per key, one kick per commit at the most, and none is lost."""

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from pgq_core import Enqueued, NewJob, db, enqueue, enqueue_many, jobs, queues
from pgq_core.claim import claim
from tests.conftest import Connect
from tests.race.conftest import AtOnce
from tests.sql.conftest import Background
from tests.sql.rows import Rows

MINUTE = timedelta(minutes=1)

Put = Callable[[psycopg.Connection], Enqueued]


def one(conn: psycopg.Connection) -> Enqueued:
    return enqueue(conn, "t", {}, unique_key="k")


def many(conn: psycopg.Connection) -> Enqueued:
    return enqueue_many(conn, [NewJob("t", {}), NewJob("t", {}, unique_key="k")])[1]


either = pytest.mark.parametrize("put", [one, many], ids=["one", "many"])


@either
def test_a_second_job_of_a_key_waits_for_the_first_to_commit(
    conn: psycopg.Connection, connect: Connect, blocked: Background, put: Put
) -> None:
    with conn.transaction():
        first = enqueue(conn, "t", {}, unique_key="k")
        second = blocked(put, connect())
    assert second.result(timeout=10) == Enqueued(id=first.id, inserted=False)


@either
def test_a_second_job_of_a_key_is_put_in_if_the_first_is_rolled_back(
    conn: psycopg.Connection, connect: Connect, blocked: Background, put: Put
) -> None:
    with conn.transaction(force_rollback=True):
        enqueue(conn, "t", {}, unique_key="k")
        second = blocked(put, connect())
    assert second.result(timeout=10).inserted


@either
def test_a_second_job_of_a_key_is_put_in_if_the_first_has_ended_meanwhile(
    conn: psycopg.Connection, connect: Connect, blocked: Background, put: Put
) -> None:
    with conn.transaction():
        first = enqueue(conn, "t", {}, unique_key="k")
        second = blocked(put, connect())
        jobs.cancel(conn, first.id)
    assert second.result(timeout=10).inserted


def test_a_key_freed_between_the_conflict_and_the_look_is_taken_in_the_same_transaction(
    conn: psycopg.Connection, connect: Connect, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many jobs by themselves are there all or none, also those that are tried again."""
    held = enqueue(conn, "t", {}, unique_key="k")
    person, seen = connect(), []

    def run(conn: psycopg.Connection, name: str, /, **params: object) -> list[Any]:
        if name == "find_keys":
            jobs.cancel(person, held.id)
        if name == "enqueue":
            seen.append(len(rows.all()))  # by another connection: what is committed
        return db.run(conn, name, **params)

    monkeypatch.setattr(sys.modules["pgq_core.enqueue"], "run", run)
    assert many(conn).inserted
    assert seen == [1]
    assert len(rows.all()) == 3


def test_one_of_many_producers_of_a_key_wins(rows: Rows, at_once: AtOnce) -> None:
    answers = at_once(*[one] * 8)
    assert [answer.inserted for answer in answers].count(True) == 1
    assert len({answer.id for answer in answers}) == 1
    assert len(rows.all()) == 1


def test_clm_09_a_retry_does_not_take_a_key_that_is_being_taken(
    conn: psycopg.Connection, connect: Connect, rows: Rows, blocked: Background, isolation: str
) -> None:
    [job_id] = rows.add(status="failed", unique_key="k")
    with conn.transaction():
        enqueue(conn, "t", {}, unique_key="k")
        retried = blocked(jobs.retry, connect(options=isolation), job_id)
    assert retried.result(timeout=10) is None
    assert rows.read(job_id)["status"] == "failed"


def test_a_retry_in_vain_leaves_the_transaction_of_the_caller_usable(
    conn: psycopg.Connection, connect: Connect, rows: Rows, blocked: Background
) -> None:
    [job_id] = rows.add(status="failed", unique_key="k")
    mine = connect(autocommit=False)
    mine.execute("SELECT 1")
    with conn.transaction():
        enqueue(conn, "t", {}, unique_key="k")
        retried = blocked(jobs.retry, mine, job_id)
    assert retried.result(timeout=10) is None
    assert mine.info.transaction_status is TransactionStatus.INTRANS


# --- kicks ---


def test_many_commits_at_once_kick_at_least_once_and_leave_a_mark(
    conn: psycopg.Connection, rows: Rows, at_once: AtOnce, isolation: str
) -> None:
    def commit(other: psycopg.Connection) -> queues.KickRequest:
        enqueue(other, "t", {})
        try:
            return queues.request_kick(other, "default")
        except pg.LockNotAvailable:  # on a machine this slow: kick, as the producer does
            return (True, None)

    for _ in range(5):
        asked = at_once(*[commit] * 8, options=isolation)
        assert any(request[0] for request in asked)
        assert any(request[1] for request in asked)
        assert queues.request_kick(conn, "default") == (False, None)
        rows.conn.execute("DELETE FROM pgq_core.queues")


def test_a_row_that_somebody_else_is_making_is_not_waited_for(
    conn: psycopg.Connection, connect: Connect
) -> None:
    """The producer kicks on any error; its commit must not wait for another's."""
    other = connect()
    conn.execute("SET lock_timeout = '20s'")
    with other.transaction():
        queues.pause(other, "default")
        with pytest.raises(pg.LockNotAvailable):
            queues.request_kick(conn, "default")
    assert conn.execute("SHOW lock_timeout").fetchone() == ("20s",)
    assert not queues.request_kick(conn, "default")[0]


def test_a_row_that_somebody_keeps_is_waited_for_no_longer_than_a_kick_is_pending(
    conn: psycopg.Connection, connect: Connect, background: Background
) -> None:
    """6 s, then the worker goes on: the pending kick is stale, an alarm too many is harmless."""
    queues.request_kick(conn, "default")
    [at] = conn.execute("SELECT now() + interval '60 s'").fetchone() or []
    workers = [connect() for _ in range(3)]
    with conn.transaction():
        conn.execute("UPDATE pgq_core.queues SET alarm_at = %s", [at])
        waiting = [
            background(queues.wake, workers[0], "default", None),
            background(queues.note_alarm, workers[1], "default", at),
            background(queues.defer_alarm, workers[2], "default", at),
        ]
        assert [one.result(timeout=20) for one in waiting] == [None, True, None]


def test_a_row_that_somebody_else_is_making_is_waited_for_no_longer_either(
    conn: psycopg.Connection, connect: Connect, background: Background
) -> None:
    with conn.transaction():
        queues.pause(conn, "default")
        waiting = background(queues.wake, connect(), "default", None)
        assert waiting.result(timeout=9) is None


def test_a_job_whose_producer_saw_the_mark_is_seen_by_the_worker_that_clears_it(
    conn: psycopg.Connection, connect: Connect
) -> None:
    """That is why the mark is cleared, and committed, before the snapshot of the claim."""
    producer = connect()
    assert queues.request_kick(producer, "default")[0]
    with conn.transaction():
        queues.wake(conn, "default", None)
        new = enqueue(producer, "t", {})
        assert not queues.request_kick(producer, "default")[0]
    assert [job.id for job in claim(conn, "default", 10, MINUTE)] == [new.id]


@pytest.mark.parametrize(
    ("act", "arguments"),
    [
        (queues.wake, ["default", None]),
        (queues.pause, ["default"]),
        (queues.resume, ["default"]),
    ],
    ids=["wake", "pause", "resume"],
)
def test_a_write_to_a_queue_waits_for_its_row_under_any_isolation(
    conn: psycopg.Connection,
    connect: Connect,
    blocked: Background,
    isolation: str,
    *,
    act: Any,
    arguments: list[Any],
) -> None:
    queues.request_kick(conn, "default")
    with conn.transaction():
        conn.execute("UPDATE pgq_core.queues SET max_workers = 3")
        waiting = blocked(act, connect(options=isolation), *arguments)
    waiting.result(timeout=10)
    query = "SELECT max_workers FROM pgq_core.queues"
    assert conn.execute(query).fetchone() == (3,)


def test_marks_of_alarms_agree_under_any_isolation(
    conn: psycopg.Connection, rows: Rows, at_once: AtOnce, isolation: str
) -> None:
    """The earliest of the instants noted at once is the one that stays."""
    queues.wake(conn, "default", None)
    [now] = conn.execute("SELECT now()").fetchone() or []

    def note(seconds: int) -> Callable[[psycopg.Connection], bool]:
        at = now + timedelta(seconds=seconds)
        return lambda other: queues.note_alarm(other, "default", at)

    at_once(*[note(300 - 10 * n) for n in range(8)], options=isolation)
    query = "SELECT alarm_at FROM pgq_core.queues"
    assert rows.conn.execute(query).fetchone() == (now + timedelta(seconds=230),)
