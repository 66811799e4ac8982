"""Queues: pauses, figures, and the two marks that tell who has been woken."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgq_core import Job, enqueue, enqueue_many, queues
from pgq_core.claim import claim
from pgq_core.fence import complete
from pgq_core.job import NewJob
from pgq_core.queues import QueueStats
from tests.conftest import Connect
from tests.sql.conftest import Locked
from tests.sql.rows import Rows

MINUTE = timedelta(minutes=1)
QUIET = (False, None)


def row(conn: psycopg.Connection, queue: str = "default") -> tuple[Any, ...] | None:
    query = "SELECT paused, kick_requested_at, alarm_at FROM pgq_core.queues WHERE name = %s"
    return conn.execute(query, [queue]).fetchone()


def kick_mark(conn: psycopg.Connection) -> datetime | None:
    found = row(conn)
    assert found is not None
    mark: datetime | None = found[1]
    return mark


def alarm_mark(conn: psycopg.Connection) -> datetime | None:
    found = row(conn)
    assert found is not None
    mark: datetime | None = found[2]
    return mark


def set_mark(conn: psycopg.Connection, column: str, seconds: float | None) -> None:
    """Put a mark of the default queue *seconds* from now."""
    conn.execute(
        f"""INSERT INTO pgq_core.queues (name, {column})
            VALUES ('default', clock_timestamp() + %(s)s * interval '1 s')
            ON CONFLICT (name) DO UPDATE SET {column} = EXCLUDED.{column}""".encode(),
        {"s": seconds},
    )


def now(conn: psycopg.Connection) -> datetime:
    [instant] = conn.execute("SELECT clock_timestamp()").fetchone() or []
    assert isinstance(instant, datetime)
    return instant


@contextmanager
def queue_locked(other: psycopg.Connection) -> Iterator[None]:
    with other.transaction():
        other.execute("SELECT FROM pgq_core.queues WHERE name = 'default' FOR UPDATE")
        yield


# --- pause and resume ---


def test_a_pause_and_a_resume_make_the_row_and_keep_its_marks(conn: psycopg.Connection) -> None:
    queues.resume(conn, "default")
    assert row(conn) == (False, None, None)
    queues.pause(conn, "default")
    assert row(conn) == (True, None, None)
    set_mark(conn, "kick_requested_at", 0)
    set_mark(conn, "alarm_at", 0)
    before = row(conn)
    assert before is not None
    queues.resume(conn, "default")
    assert row(conn) == (False, *before[1:])


@pytest.mark.parametrize("act", [queues.pause, queues.resume])
def test_what_is_no_name_of_a_queue_is_refused(conn: psycopg.Connection, act: Any) -> None:
    with pytest.raises(ValueError, match="queue: 1 to 200"):
        act(conn, "")


# --- figures ---


def test_the_figures_count_each_state_of_each_queue(conn: psycopg.Connection, rows: Rows) -> None:
    rows.add(2, queue="a", at=-100)
    rows.add(3, queue="a", at=3600)
    rows.add(4, queue="a", status="running", locked_until="2030-01-01Z")
    rows.add(1, queue="a", status="running", locked_until="2020-01-01Z")
    rows.add(6, queue="a", status="failed")
    rows.add(7, queue="a", status="done")
    rows.add(8, queue="a", status="cancelled")
    rows.add(1, queue="c", status="failed")
    rows.add(1, queue="d", status="done")
    queues.pause(conn, "b")
    conn.execute("UPDATE pgq_core.queues SET max_workers = 3")
    first, second, third = queues.stats(conn)
    assert first.oldest is not None
    assert timedelta(seconds=100) <= first.oldest < timedelta(seconds=110)
    counts: dict[str, Any] = {
        "ready": 0,
        "delayed": 0,
        "running": 0,
        "expired": 0,
        "failed": 0,
        "oldest": None,
    }
    assert first == QueueStats(
        queue="a",
        paused=False,
        max_workers=10,
        ready=2,
        delayed=3,
        running=5,
        expired=1,
        failed=6,
        oldest=first.oldest,
    )
    assert second == QueueStats(queue="b", paused=True, max_workers=3, **counts)
    assert third == QueueStats(queue="c", paused=False, max_workers=10, **counts | {"failed": 1})


def test_an_empty_database_has_no_figures(conn: psycopg.Connection) -> None:
    assert queues.stats(conn) == []


# --- who has work ---


def test_queues_with_a_due_job_or_an_expired_lease_have_work(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(3, queue="due", priority=9)
    rows.add(1, queue="expired", status="running", locked_until="2020-01-01Z")
    rows.add(1, queue="future", at=3600)
    rows.add(1, queue="future and due", at=3600, priority=0)
    rows.add(1, queue="future and due", priority=9)
    rows.add(1, queue="live", status="running", locked_until="2030-01-01Z")
    rows.add(1, queue="paused")
    rows.add(1, queue="paused", status="running", locked_until="2020-01-01Z")
    rows.add(1, queue="finished", status="failed")
    queues.pause(conn, "paused")
    assert queues.with_work(conn) == ["due", "expired", "future and due"]


def test_nothing_has_work_at_rest(conn: psycopg.Connection) -> None:
    assert queues.with_work(conn) == []


# --- the pending kick ---


def test_the_first_commit_kicks_and_leaves_its_mark(conn: psycopg.Connection) -> None:
    asked = queues.request_kick(conn, "default")
    assert asked[0]
    assert asked[1] is not None
    assert asked[1] == kick_mark(conn)
    assert timedelta(0) <= now(conn) - asked[1] < timedelta(seconds=5)


def test_a_later_commit_leaves_its_mark_in_the_row_that_is_there(
    conn: psycopg.Connection,
) -> None:
    queues.wake(conn, "default", None)
    asked = queues.request_kick(conn, "default")
    assert asked[1] is not None
    assert asked[1] == kick_mark(conn)
    assert queues.request_kick(conn, "default") == QUIET


def test_nobody_kicks_while_a_kick_is_pending(conn: psycopg.Connection) -> None:
    asked = queues.request_kick(conn, "default")
    assert queues.request_kick(conn, "default") == QUIET
    assert kick_mark(conn) == asked[1]


def test_a_pending_kick_of_one_queue_silences_no_other(conn: psycopg.Connection) -> None:
    queues.request_kick(conn, "default")
    assert queues.request_kick(conn, "other")[0]


@pytest.mark.parametrize(("seconds", "stale"), [(-4, False), (-6, True), (-3600, True), (3, True)])
def test_a_mark_older_than_5_s_or_of_a_clock_that_stepped_is_stale(
    conn: psycopg.Connection, seconds: float, *, stale: bool
) -> None:
    set_mark(conn, "kick_requested_at", seconds)
    asked = queues.request_kick(conn, "default")
    assert asked[0] is stale
    assert queues.request_kick(conn, "default") == QUIET


def test_a_paused_queue_is_not_kicked(conn: psycopg.Connection) -> None:
    queues.pause(conn, "default")
    assert queues.request_kick(conn, "default") == QUIET
    assert kick_mark(conn) is None
    queues.resume(conn, "default")
    assert queues.request_kick(conn, "default")[0]


def test_a_locked_row_means_kick_without_waiting(
    conn: psycopg.Connection, connect: Connect
) -> None:
    set_mark(conn, "kick_requested_at", None)
    conn.execute("SET lock_timeout = '2s'")
    with queue_locked(connect()):
        assert queues.request_kick(conn, "default") == (True, None)
    assert kick_mark(conn) is None


def test_a_pending_kick_is_read_past_a_lock(conn: psycopg.Connection, connect: Connect) -> None:
    queues.request_kick(conn, "default")
    conn.execute("SET lock_timeout = '2s'")
    with queue_locked(connect()):
        assert queues.request_kick(conn, "default") == QUIET


def test_a_kick_that_was_not_accepted_is_withdrawn(conn: psycopg.Connection) -> None:
    asked = queues.request_kick(conn, "default")
    assert asked[1] is not None
    queues.withdraw_kick(conn, "default", asked[1])
    assert kick_mark(conn) is None
    assert queues.request_kick(conn, "default")[0]


def test_only_ones_own_mark_is_withdrawn(conn: psycopg.Connection) -> None:
    asked = queues.request_kick(conn, "default")
    assert asked[1] is not None
    queues.withdraw_kick(conn, "default", asked[1] - timedelta(microseconds=1))
    queues.withdraw_kick(conn, "other", asked[1])
    assert kick_mark(conn) == asked[1]


# --- jobs for later ---


def later(conn: psycopg.Connection, *seconds: float) -> list[int]:
    new = enqueue_many(conn, [NewJob("t", {}, delay=timedelta(seconds=s)) for s in seconds])
    return [enqueued.id for enqueued in new]


@pytest.mark.parametrize(
    ("alarm", "needed"),
    [
        pytest.param(None, True, id="no alarm is noted"),
        pytest.param(-1, True, id="the alarm is past"),
        pytest.param(500, False, id="the alarm is earlier"),
        pytest.param(700, True, id="the alarm is later"),
    ],
)
def test_a_job_for_later_kicks_unless_an_alarm_wakes_somebody_in_time(
    conn: psycopg.Connection, alarm: float | None, *, needed: bool
) -> None:
    set_mark(conn, "alarm_at", alarm)
    ids = later(conn, 900, 600)
    assert queues.request_kick(conn, "default", ids)[0] is needed


def test_an_alarm_at_the_very_instant_of_a_job_is_in_time(conn: psycopg.Connection) -> None:
    set_mark(conn, "alarm_at", 600)
    at = alarm_mark(conn)
    new = enqueue(conn, "t", {}, run_at=at)
    assert not queues.request_kick(conn, "default", [new.id])[0]


def test_an_alarm_silences_no_job_that_is_due(conn: psycopg.Connection, rows: Rows) -> None:
    set_mark(conn, "alarm_at", 500)
    assert queues.request_kick(conn, "default")[0]
    queues.wake(conn, "default", None)
    ids = later(conn, 900)
    rows.age(ids[0], "run_at", 1)
    assert queues.request_kick(conn, "default", ids)[0]


def test_jobs_for_later_kick_where_the_queue_has_no_row(conn: psycopg.Connection) -> None:
    assert queues.request_kick(conn, "default", later(conn, 900))[0]


def test_jobs_for_later_kick_not_while_a_kick_is_pending(conn: psycopg.Connection) -> None:
    """The kicked worker has not looked yet: it will arm for them."""
    queues.request_kick(conn, "default")
    assert queues.request_kick(conn, "default", later(conn, 900)) == QUIET


# --- a worker is awake ---


def test_a_worker_makes_the_row_and_clears_the_kick(conn: psycopg.Connection) -> None:
    queues.wake(conn, "default", None)
    assert row(conn) == (False, None, None)
    queues.request_kick(conn, "default")
    queues.wake(conn, "default", None)
    assert kick_mark(conn) is None
    assert queues.request_kick(conn, "default")[0]


@pytest.mark.parametrize(("ahead", "spent"), [(-500, True), (0, True), (59, True), (61, False)])
def test_a_worker_woken_by_an_alarm_spends_every_mark_up_to_a_minute_later(
    conn: psycopg.Connection, ahead: float, *, spent: bool
) -> None:
    woken_for = now(conn) + timedelta(seconds=1000)
    set_mark(conn, "alarm_at", 1000 + ahead)
    queues.wake(conn, "default", woken_for)
    assert (alarm_mark(conn) is None) is spent


def test_a_worker_woken_by_a_kick_spends_no_alarm(conn: psycopg.Connection) -> None:
    set_mark(conn, "alarm_at", -100)
    set_mark(conn, "kick_requested_at", 0)
    queues.wake(conn, "default", None)
    assert kick_mark(conn) is None
    assert alarm_mark(conn) is not None


def test_a_worker_with_an_alarm_too_far_ahead_still_clears_the_kick(
    conn: psycopg.Connection,
) -> None:
    set_mark(conn, "alarm_at", 70)
    set_mark(conn, "kick_requested_at", 0)
    queues.wake(conn, "default", now(conn))
    assert kick_mark(conn) is None
    assert alarm_mark(conn) is not None


def test_a_worker_with_nothing_to_clear_waits_for_no_lock(
    conn: psycopg.Connection, connect: Connect
) -> None:
    queues.wake(conn, "default", None)
    conn.execute("SET lock_timeout = '2s'")
    with queue_locked(connect()):
        queues.wake(conn, "default", now(conn))


# --- how many are at work ---


def lease(rows: Rows, worker: str | None, *, until: str = "2030-01-01Z", count: int = 1) -> None:
    rows.add(count, status="running", locked_by=worker, locked_until=until)


def cap(conn: psycopg.Connection, workers: int) -> None:
    conn.execute(
        "INSERT INTO pgq_core.queues (name, max_workers) VALUES ('default', %s)", [workers]
    )


def test_as_many_others_as_the_queue_allows_are_a_full_house(
    conn: psycopg.Connection, rows: Rows
) -> None:
    cap(conn, 2)
    lease(rows, "a", count=5)
    assert queues.crowd(conn, "default", "me") == (False, False)
    lease(rows, "b")
    assert queues.crowd(conn, "default", "me") == (True, False)


def test_a_worker_does_not_count_itself(conn: psycopg.Connection, rows: Rows) -> None:
    cap(conn, 1)
    lease(rows, "me")
    assert queues.crowd(conn, "default", "me")[0] is False
    assert queues.crowd(conn, "default", "other")[0] is True
    assert queues.crowd(conn, "default", None)[0] is True


def test_lse_03_expired_leases_and_other_queues_count_for_nothing(
    conn: psycopg.Connection, rows: Rows
) -> None:
    cap(conn, 1)
    lease(rows, "a", until="2020-01-01Z")
    rows.add(queue="other", status="running", locked_by="b", locked_until="2030-01-01Z")
    rows.add(status="cancelled", locked_by="c", locked_until="2030-01-01Z")
    assert queues.crowd(conn, "default", "me")[0] is False


def test_a_queue_without_a_row_has_room_for_ten(conn: psycopg.Connection, rows: Rows) -> None:
    for number in range(9):
        lease(rows, f"w{number}")
    assert queues.crowd(conn, "default", "me")[0] is False
    lease(rows, "w9")
    assert queues.crowd(conn, "default", "me")[0] is True


@pytest.mark.parametrize(
    ("columns", "due"),
    [
        ({"priority": 9}, True),
        ({"at": 60}, False),
        ({"queue": "other"}, False),
        ({"status": "done"}, False),
        ({"attempts": 5, "max_attempts": 5}, False),
    ],
    ids=str,
)
def test_a_crowd_tells_whether_a_job_is_due(
    conn: psycopg.Connection, rows: Rows, columns: dict[str, Any], *, due: bool
) -> None:
    rows.add(1, **columns)
    assert queues.crowd(conn, "default", "me") == (False, due)


def test_a_paused_queue_has_nothing_due(conn: psycopg.Connection, rows: Rows) -> None:
    rows.add()
    rows.add(at=60)
    lease(rows, "a")
    queues.pause(conn, "default")
    assert queues.crowd(conn, "default", "me") == (False, False)
    assert queues.outlook(conn, "default") is None


# --- when somebody is needed next ---


def seconds_ahead(conn: psycopg.Connection) -> float | None:
    look = queues.outlook(conn, "default")
    return None if look is None else look[1].total_seconds()


def test_at_rest_nobody_is_needed(conn: psycopg.Connection, rows: Rows) -> None:
    rows.add(queue="other")
    for status in ("done", "failed", "cancelled"):
        rows.add(status=status, at=60, locked_until="2030-01-01Z")
    assert queues.outlook(conn, "default") is None


@pytest.mark.parametrize("plan", ["", "-c enable_indexscan=off -c enable_bitmapscan=off"])
def test_the_next_run_at_counts_whatever_its_priority(
    connect: Connect, rows: Rows, plan: str
) -> None:
    rows.add(priority=0, at=600)
    rows.add(priority=9, at=900)
    [job_id] = rows.add(priority=9, at=300)
    look = queues.outlook(connect(options=plan), "default")
    assert look is not None
    assert look[0] == rows.read(job_id)["run_at"]
    assert 295 < look[1].total_seconds() <= 300


@pytest.mark.parametrize("plan", ["", "-c enable_indexscan=off -c enable_bitmapscan=off"])
def test_the_end_of_the_first_lease_counts_if_it_is_sooner(
    connect: Connect, rows: Rows, plan: str
) -> None:
    rows.add(at=600)
    rows.add(status="running", locked_until="2030-01-01Z")
    [job_id] = rows.add(status="running", locked_until="2030-01-01Z")
    rows.age(job_id, "locked_until", -300)
    look = queues.outlook(connect(options=plan), "default")
    assert look is not None
    assert look[0] == rows.read(job_id)["locked_until"]


def test_a_due_job_that_a_lock_hid_is_looked_for_in_30_s(
    conn: psycopg.Connection, rows: Rows, locked: Locked
) -> None:
    [job_id] = rows.add()
    rows.add(at=600)
    with locked(job_id):
        assert claim(conn, "default", 1, MINUTE) == []
        ahead = seconds_ahead(conn)
    assert ahead is not None
    assert 25 < ahead <= 30


def test_behind_what_a_lock_hid_the_next_is_looked_for(
    conn: psycopg.Connection, rows: Rows, job: Job, locked: Locked
) -> None:
    rows.expire(job)
    [due] = rows.add()
    rows.add(at=20)
    with locked(job.id), locked(due):
        ahead = seconds_ahead(conn)
        assert ahead is not None
        assert 15 < ahead <= 20
        [live] = rows.add(status="running", locked_until="2030-01-01Z")
        rows.age(live, "locked_until", -10)
        ahead = seconds_ahead(conn)
    assert ahead is not None
    assert 5 < ahead <= 10


def test_a_job_with_no_attempt_left_needs_nobody(conn: psycopg.Connection, rows: Rows) -> None:
    rows.add(attempts=5, max_attempts=5)
    assert queues.outlook(conn, "default") is None


def test_an_expired_lease_that_a_lock_hid_is_not_looked_for_at_once(
    conn: psycopg.Connection, rows: Rows, job: Job, locked: Locked
) -> None:
    """The reclaim has just passed it by: at once would be without end, as long as it is locked."""
    rows.expire(job)
    with locked(job.id):
        ahead = seconds_ahead(conn)
    assert ahead is not None
    assert ahead >= 1


# --- the alarm ---


def test_an_alarm_is_noted_where_there_is_none(conn: psycopg.Connection) -> None:
    queues.wake(conn, "default", None)
    at = now(conn) + MINUTE
    assert queues.note_alarm(conn, "default", at)
    assert alarm_mark(conn) == at


@pytest.mark.parametrize(("noted", "instead"), [(-1, True), (50, False), (70, True)])
def test_an_alarm_replaces_a_past_one_and_a_later_one_only(
    conn: psycopg.Connection, noted: float, *, instead: bool
) -> None:
    set_mark(conn, "alarm_at", noted)
    before, at = alarm_mark(conn), now(conn) + MINUTE
    assert queues.note_alarm(conn, "default", at) is instead
    assert alarm_mark(conn) == (at if instead else before)


def test_an_alarm_that_is_noted_already_is_not_noted_again(conn: psycopg.Connection) -> None:
    queues.wake(conn, "default", None)
    at = now(conn) + MINUTE
    assert queues.note_alarm(conn, "default", at)
    assert not queues.note_alarm(conn, "default", at)


def test_an_alarm_that_was_refused_is_put_off_by_5_minutes(conn: psycopg.Connection) -> None:
    queues.wake(conn, "default", None)
    at = now(conn) + MINUTE
    queues.note_alarm(conn, "default", at)
    queues.defer_alarm(conn, "default", at)
    mark = alarm_mark(conn)
    assert mark is not None
    assert timedelta(minutes=4, seconds=55) < mark - now(conn) <= timedelta(minutes=5)


def test_only_the_alarm_that_one_noted_is_put_off(conn: psycopg.Connection) -> None:
    set_mark(conn, "alarm_at", 60)
    before = alarm_mark(conn)
    queues.defer_alarm(conn, "default", now(conn) + MINUTE)
    assert alarm_mark(conn) == before


def test_no_bound_of_a_wait_outlives_its_statement(conn: psycopg.Connection) -> None:
    at = now(conn)
    queues.wake(conn, "default", at)
    queues.note_alarm(conn, "default", at)
    queues.defer_alarm(conn, "default", at)
    asked = queues.request_kick(conn, "made by it")
    assert asked[1] is not None
    queues.wake(conn, "made by it", at)
    queues.withdraw_kick(conn, "made by it", asked[1])
    assert conn.execute("SHOW lock_timeout").fetchone() == ("0",)


# --- at rest ---


def test_at_rest_the_marks_are_not_written(conn: psycopg.Connection, rows: Rows, job: Job) -> None:
    """A worker that finds nothing to change leaves no dead row behind."""
    complete(conn, [job])
    queues.wake(conn, "default", None)
    query = "SELECT xmin::text FROM pgq_core.queues"
    before = rows.conn.execute(query).fetchone()
    queues.wake(conn, "default", now(conn))
    assert claim(conn, "default", 10, MINUTE) == []
    assert queues.outlook(conn, "default") is None
    assert rows.conn.execute(query).fetchone() == before
