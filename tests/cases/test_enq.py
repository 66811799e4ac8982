"""Cases of the enqueue that need a producer, megabytes, or a connection of another kind."""

import asyncio
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from pgq_core import NewJob, Producer, enqueue, enqueue_many, jobs, migrate, queues
from pgq_core.claim import claim
from pgq_core.job import MAX_PAYLOAD_BYTES
from pgq_core.reaper import cleanup, reclaim
from tests.producer.fakes import Kicks

Count = Callable[[], int]

MEGABYTES = [1, 30]  # 260 are refused alike: in seconds, and 800 MB
BATCH = 20  # jobs of the largest size


def test_enq_05_no_job_kicks_nobody(
    conn: psycopg.Connection, producer: Producer, kicks: Kicks
) -> None:
    with producer.transaction(conn) as tx:
        assert tx.enqueue_many([]) == []
    assert kicks.sent == []


@pytest.mark.parametrize("megabytes", MEGABYTES)
def test_enq_13_a_huge_payload_is_refused_and_the_transaction_goes_on(
    conn: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count, megabytes: int
) -> None:
    huge = {"a": "x" * (megabytes << 20)}
    with producer.transaction(conn) as tx:
        with pytest.raises(ValueError, match="store the data elsewhere"):
            tx.enqueue("ok", huge)
        with pytest.raises(ValueError, match="store the data elsewhere"):
            tx.enqueue_many([NewJob("ok", {}), NewJob("ok", huge)])
        tx.enqueue("ok", {})
    assert (committed(), len(kicks.sent)) == (1, 1)


def test_enq_13_a_batch_of_the_largest_payloads_takes_twice_its_size(
    conn: psycopg.Connection,
) -> None:
    payload = {"a": "x" * (MAX_PAYLOAD_BYTES - len('{"a":""}{}'))}
    enqueue_many(conn, [NewJob("ok", payload)] * BATCH)
    tracemalloc.start()
    try:
        assert len(claim(conn, "default", BATCH, timedelta(minutes=1))) == BATCH
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * BATCH * MAX_PAYLOAD_BYTES


def go_on_after_an_error(producer: Producer, conn: psycopg.Connection) -> None:
    with producer.transaction(conn) as tx:
        tx.enqueue("ok", {})
        with pytest.raises(pg.DivisionByZero):
            conn.execute("SELECT 1 / 0")
        tx.enqueue("ok", {})


def test_enq_14_an_enqueue_after_an_error_gets_the_error_of_the_driver_and_kicks_nobody(
    conn: psycopg.Connection, producer: Producer, kicks: Kicks, committed: Count
) -> None:
    with pytest.raises(pg.InFailedSqlTransaction):
        go_on_after_an_error(producer, conn)
    assert (committed(), kicks.sent) == (0, [])


class AnotherDriver:
    """A connection of another library: with some of what ours has."""

    autocommit = True
    closed = 0


def enter(producer: Producer, conn: Any) -> None:
    with producer.transaction(conn):
        pytest.fail("the block must not be entered")


CALLS: dict[str, Callable[[Producer, Any], object]] = {
    "enqueue": lambda _, conn: enqueue(conn, "ok", {}),
    "transaction": enter,
    "kick": lambda producer, conn: producer.kick(conn, ["default"]),
    "kick nobody": lambda producer, conn: producer.kick(conn, []),
    "claim": lambda _, conn: claim(conn, "default", 1, timedelta(minutes=1)),
    "reclaim": lambda _, conn: reclaim(conn),
    "cleanup": lambda _, conn: cleanup(conn),
    "get": lambda _, conn: jobs.get(conn, 1),
    "stats": lambda _, conn: queues.stats(conn),
    "migrate": lambda _, conn: migrate(conn),
}


@pytest.mark.parametrize("call", CALLS)
def test_enq_14_a_wrong_kind_of_connection_is_a_type_error_and_kicks_nobody(
    dsn: str, call: str, producer: Producer, kicks: Kicks
) -> None:
    def attempt(wrong: object) -> None:
        with pytest.raises(TypeError, match=r"conn: a psycopg\.Connection is expected, not"):
            CALLS[call](producer, wrong)

    async def attempt_async() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as wrong:
            attempt(wrong)

    for wrong in (None, "postgresql://", psycopg.Connection, AnotherDriver()):
        attempt(wrong)
    asyncio.run(attempt_async())
    assert kicks.sent == []
