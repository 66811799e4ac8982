"""Whether a commit needs a kick: a pending one, a noted alarm or a pause says no."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pgq_core import Enqueued, NewJob, Producer, queues
from tests.producer.fakes import Kicks, Mark

Connect = Callable[..., psycopg.Connection]
Put = Callable[..., Enqueued]

HOUR = timedelta(hours=1)


@pytest.fixture
def put(conn: psycopg.Connection, producer: Producer) -> Put:
    """Enqueue one job in a transaction of its own."""

    def put(**options: object) -> Enqueued:
        with producer.transaction(conn) as tx:
            return tx.enqueue("a", {}, **options)

    return put


def set_mark(conn: psycopg.Connection, column: str, age: timedelta) -> None:
    conn.execute("INSERT INTO pgq_core.queues (name) VALUES ('default') ON CONFLICT DO NOTHING")
    conn.execute(f"UPDATE pgq_core.queues SET {column} = clock_timestamp() - %s", [age])


def test_a_queue_seen_for_the_first_time_is_kicked_and_marked(
    put: Put, kicks: Kicks, mark: Mark
) -> None:
    put()
    assert kicks.sent == ["default"]
    assert mark() is not None


def test_hook_06_commits_wake_nobody_while_a_kick_is_pending(
    put: Put, producer: Producer, kicks: Kicks, mark: Mark
) -> None:
    put()
    before = mark()
    for _ in range(20):
        put()
    put(queue="other")
    assert kicks.sent == ["default", "other"]
    assert producer.stats == {"sent": 2, "coalesced": 20, "failed": 0}
    assert mark() == before, "a mark renewed by each commit would never get stale"


@pytest.mark.parametrize(
    ("age", "kicked"),
    [
        (timedelta(seconds=4), False),
        (timedelta(seconds=6), True),
        pytest.param(-HOUR, True, id="the clock stepped back"),
    ],
)
def test_lam_13_a_pending_kick_counts_for_five_seconds(
    *, age: timedelta, kicked: bool, conn: psycopg.Connection, put: Put, kicks: Kicks
) -> None:
    set_mark(conn, "kick_requested_at", age)
    put()
    assert bool(kicks.sent) is kicked


def test_a_paused_queue_needs_nobody(conn: psycopg.Connection, put: Put, kicks: Kicks) -> None:
    queues.pause(conn, "default")
    put()
    assert kicks.sent == []
    queues.resume(conn, "default")
    put()
    assert kicks.sent == ["default"]


def seconds_taken(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


def test_a_locked_queue_delays_no_commit_and_is_kicked(
    conn: psycopg.Connection, connect: Connect, put: Put, kicks: Kicks
) -> None:
    set_mark(conn, "kick_requested_at", HOUR)
    conn.execute("SET lock_timeout = '3s'")
    other = connect(autocommit=False)
    other.execute("SELECT FROM pgq_core.queues FOR UPDATE")
    assert seconds_taken(put) < 2
    assert kicks.sent == ["default"]


def test_a_queue_that_another_transaction_is_making_delays_no_commit(
    conn: psycopg.Connection, connect: Connect, put: Put, kicks: Kicks
) -> None:
    conn.execute("SET lock_timeout = '3s'")
    other = connect(autocommit=False)
    queues.pause(other, "default")
    assert seconds_taken(put) < 2
    assert kicks.sent == ["default"]


def test_a_kick_that_failed_delays_no_commit_to_take_its_mark_back(
    conn: psycopg.Connection, connect: Connect, put: Put, kicks: Kicks
) -> None:
    other = connect(autocommit=False)

    def lock_and_fail(_queue: str) -> bool:
        other.execute("SELECT FROM pgq_core.queues FOR UPDATE")
        return False

    kicks.answer = lock_and_fail
    conn.execute("SET lock_timeout = '3s'")
    assert seconds_taken(put) < 2


@pytest.mark.parametrize(
    ("alarm_in", "kicked"),
    [
        pytest.param(None, True, id="no alarm"),
        pytest.param(timedelta(minutes=30), False, id="earlier than the job"),
        pytest.param(2 * HOUR, True, id="later than the job"),
        pytest.param(-timedelta(seconds=1), True, id="past: it may have been lost"),
    ],
)
@pytest.mark.parametrize("by", ["delay", "run_at"])
def test_a_job_for_later_kicks_only_if_no_alarm_will_wake_somebody_in_time(
    *, alarm_in: timedelta | None, kicked: bool, by: str, conn: psycopg.Connection, put: Put,
    kicks: Kicks,
) -> None:  # fmt: skip
    if alarm_in is not None:
        set_mark(conn, "alarm_at", -alarm_in)
    put(**{by: HOUR if by == "delay" else datetime.now(UTC) + HOUR})
    assert bool(kicks.sent) is kicked


def later(*delays: timedelta | None) -> list[NewJob]:
    return [NewJob("a", {}, delay=delay) for delay in delays]


@pytest.mark.parametrize(
    ("delays", "kicked"),
    [
        pytest.param([3 * HOUR, 2 * HOUR], False, id="all after the alarm"),
        pytest.param([3 * HOUR, HOUR / 2], True, id="one before the alarm"),
        pytest.param([3 * HOUR, None], True, id="one at once"),
        pytest.param([None, 3 * HOUR], True, id="the first at once"),
    ],
)
@pytest.mark.parametrize("how", ["bulk", "single", "nested"])
def test_the_earliest_job_of_a_commit_decides(
    *, delays: list[timedelta | None], kicked: bool, how: str, conn: psycopg.Connection,
    producer: Producer, kicks: Kicks,
) -> None:  # fmt: skip
    set_mark(conn, "alarm_at", -HOUR)
    with producer.transaction(conn) as tx:
        if how == "bulk":
            tx.enqueue_many(later(*delays))
        for delay in delays if how == "single" else ():
            tx.enqueue("a", {}, delay=delay)
        for job in later(*delays) if how == "nested" else ():
            with producer.transaction(conn) as inner:
                inner.enqueue_many([job])
    assert bool(kicks.sent) is kicked


def test_a_run_at_in_the_past_is_due_whatever_alarm_is_noted(
    conn: psycopg.Connection, put: Put, kicks: Kicks
) -> None:
    set_mark(conn, "alarm_at", -HOUR)
    put(run_at=datetime.now(UTC) - HOUR)
    assert kicks.sent == ["default"]


@pytest.mark.parametrize("delay", [None, 2 * HOUR])
def test_a_conflict_kicks_whatever_alarm_is_noted(
    delay: timedelta | None, conn: psycopg.Connection, put: Put, kicks: Kicks
) -> None:
    first = put(unique_key="k", delay=delay)
    set_mark(conn, "kick_requested_at", HOUR)
    set_mark(conn, "alarm_at", -HOUR)
    second = put(unique_key="k", delay=2 * HOUR)
    assert (second.id, second.inserted) == (first.id, False)
    assert kicks.sent == ["default", "default"]
