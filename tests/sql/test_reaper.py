"""Reaper: expired leases come back with a backoff; finished jobs go when they have been kept."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgq_core import Job
from pgq_core.claim import claim
from pgq_core.errors import OpenTransaction
from pgq_core.fence import complete, extend, fail, release
from pgq_core.reaper import Reclaimed, cleanup, reclaim
from tests.conftest import Connect
from tests.sql.conftest import Locked
from tests.sql.rows import Rows

MINUTE = timedelta(minutes=1)
DAY = 86400
BACKOFF = [20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
FINISHED = ["done", "failed", "cancelled"]


# --- reclaim ---


def test_an_expired_lease_is_put_back_as_a_crash(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    rows.change(job, locked_by="invocation-1")
    rows.expire(job)
    assert reclaim(conn) == [Reclaimed(id=job.id, status="queued", attempts=1)]
    row = rows.read(job)
    assert (row["status"], row["attempts"], row["released"], row["settled"]) == ("queued", 1, 0, 0)
    assert (row["crashed"], row["locked_until"], row["locked_by"]) == (1, None, None)
    assert row["last_error"] == "lease expired: attempt 1 was never settled by invocation-1"
    assert row["finished_at"] is None
    assert reclaim(conn) == []


@pytest.mark.parametrize("count", [0, 3])
def test_a_lease_that_no_claim_has_counted_comes_back_too(
    conn: psycopg.Connection, rows: Rows, count: int
) -> None:
    """Plain SQL can set a job running; no more crashes than attempts can be stored."""
    [job_id] = rows.add(
        status="running", locked_until="2020-01-01Z", attempts=count, crashed=count, max_attempts=9
    )
    assert reclaim(conn) == [Reclaimed(id=job_id, status="queued", attempts=count)]
    assert rows.read(job_id)["crashed"] == count


def test_a_live_lease_is_left_alone(conn: psycopg.Connection, rows: Rows, job: Job) -> None:
    before = rows.read(job)
    assert reclaim(conn) == []
    assert rows.read(job) == before


def test_a_lease_that_was_extended_is_left_alone(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    rows.expire(job)
    extend(conn, job, MINUTE)
    assert reclaim(conn) == []


@pytest.mark.parametrize("status", ["queued", *FINISHED])
def test_ack_11_only_a_running_job_is_reclaimed(
    conn: psycopg.Connection, rows: Rows, status: str
) -> None:
    """A cancelled job keeps the end of its lease, long past."""
    rows.add(status=status, locked_until="2020-01-01Z")
    before = rows.all()
    assert reclaim(conn) == []
    assert rows.all() == before


def test_a_cancelled_job_takes_no_room_from_an_expired_one(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(5, status="cancelled", locked_until="2020-01-01Z")
    [expired] = rows.add(status="running", locked_until="2020-01-01Z", attempts=1)
    assert [back.id for back in reclaim(conn, limit=1)] == [expired]


@pytest.mark.parametrize(("attempt", "seconds"), list(enumerate(BACKOFF, start=1)))
def test_a_reclaimed_job_waits_as_long_as_a_failed_one(
    conn: psycopg.Connection, rows: Rows, attempt: int, seconds: int
) -> None:
    [job_id] = rows.add(
        status="running",
        attempts=attempt + 6,
        released=6,
        max_attempts=1000,
        locked_until="2020-01-01Z",
    )
    reclaim(conn)
    assert seconds - 5 < rows.seconds_to(job_id) <= seconds


def test_lse_09_a_crash_of_the_last_attempt_fails_the_job(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(max_attempts=3, attempts=2)
    [job] = claim(conn, "default", 1, MINUTE)
    rows.expire(job)
    assert reclaim(conn) == [Reclaimed(id=job.id, status="failed", attempts=3)]
    row = rows.read(job)
    assert row["last_error"] == "lease expired: attempt 3 was never settled by its worker"
    assert (row["crashed"], row["locked_until"]) == (1, None)
    assert -5 < rows.seconds_to(job, "finished_at") <= 0


def test_claims_not_held_against_a_job_do_not_fail_it_at_a_crash(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(max_attempts=1, attempts=3, released=3)
    [job] = claim(conn, "default", 1, MINUTE)
    rows.change(job, released=4)
    rows.expire(job)
    assert [back.status for back in reclaim(conn)] == ["queued"]


def test_a_job_that_crashes_each_time_is_started_max_attempts_times(
    conn: psycopg.Connection, rows: Rows
) -> None:
    [job_id] = rows.add(max_attempts=3)
    crashed = []
    while claim(conn, "default", 1, MINUTE):
        rows.expire(job_id)
        reclaim(conn)
        crashed.append(rows.read(job_id)["crashed"])
        rows.age(job_id, "run_at", 0)
    assert crashed == [1, 2, 3]
    assert rows.read(job_id)["status"] == "failed"


def test_a_release_between_two_crashes_does_not_end_the_row_of_them(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    rows.expire(job)
    reclaim(conn)
    rows.age(job, "run_at", 0)
    [again] = claim(conn, "default", 1, MINUTE)
    release(conn, [again])
    [third] = claim(conn, "default", 1, MINUTE)
    rows.expire(third)
    reclaim(conn)
    assert rows.read(job)["crashed"] == 2
    rows.age(job, "run_at", 0)
    [fourth] = claim(conn, "default", 1, MINUTE)
    fail(conn, fourth, "no crash")
    assert rows.read(job)["crashed"] == 0


def test_clm_03_a_reclaimed_job_keeps_its_priority(conn: psycopg.Connection, rows: Rows) -> None:
    [urgent] = rows.add(priority=0)
    claim(conn, "default", 1, MINUTE)
    rows.expire(urgent)
    reclaim(conn)
    rows.age(urgent, "run_at", 0)
    rows.add(20, at=-100)
    assert [job.id for job in claim(conn, "default", 1, MINUTE)] == [urgent]


def test_reclaim_may_be_limited_to_a_queue(conn: psycopg.Connection, rows: Rows) -> None:
    expired: dict[str, Any] = {"status": "running", "locked_until": "2020-01-01Z", "attempts": 1}
    spent: dict[str, Any] = {"attempts": 5, "max_attempts": 5}
    mine = rows.add(queue="a", **expired) + rows.add(queue="a", **spent)
    others = rows.add(queue="b", **expired) + rows.add(queue="b", **spent)
    assert {back.id for back in reclaim(conn, queue="a")} == set(mine)
    assert {back.id for back in reclaim(conn)} == set(others)


def test_reclaim_is_bounded_and_goes_on_where_it_stopped(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(7, status="running", locked_until="2020-01-01Z", attempts=1)
    assert [len(reclaim(conn, limit=3)) for _ in range(4)] == [3, 3, 1, 0]


def test_the_limit_of_reclaim_holds_for_expired_and_spent_jobs_together(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(3, status="running", locked_until="2020-01-01Z", attempts=1)
    rows.add(3, attempts=5, max_attempts=5)
    assert len(reclaim(conn, limit=3)) == 3


@pytest.mark.parametrize("at", [-10, 3600])
def test_a_queued_job_with_no_attempt_left_is_failed_with_the_reason(
    conn: psycopg.Connection, rows: Rows, at: int
) -> None:
    """No claim takes it; only plain SQL makes it."""
    [job_id] = rows.add(attempts=7, released=2, max_attempts=5, at=at)
    rows.add(attempts=6, released=2, max_attempts=5)
    assert reclaim(conn) == [Reclaimed(id=job_id, status="failed", attempts=7)]
    row = rows.read(job_id)
    assert row["last_error"] == "no attempt left: 5 of 5 were used when it was queued"
    assert -5 < rows.seconds_to(job_id, "finished_at") <= 0


def test_lse_01_a_job_that_is_being_completed_is_passed_by(
    conn: psycopg.Connection, connect: Connect, rows: Rows, job: Job
) -> None:
    """The reaper read it as expired; what the worker commits afterwards stays."""
    rows.expire(job)
    worker = connect()
    conn.execute("SET lock_timeout = '2s'")
    with worker.transaction():
        complete(worker, [job])
        assert reclaim(conn) == []
    assert rows.read(job)["status"] == "done"
    assert reclaim(conn) == []


def test_a_locked_row_does_not_hold_up_the_others(
    conn: psycopg.Connection, rows: Rows, locked: Locked
) -> None:
    expired = rows.add(2, status="running", locked_until="2020-01-01Z", attempts=1)
    spent = rows.add(2, attempts=5, max_attempts=5)
    conn.execute("SET lock_timeout = '2s'")
    with locked(expired[0]), locked(spent[0]):
        assert {back.id for back in reclaim(conn)} == {expired[1], spent[1]}
    assert {back.id for back in reclaim(conn)} == {expired[0], spent[0]}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"limit": 0}, ValueError, "limit: 1 to 10000"),
        ({"limit": 10_001}, ValueError, "limit: 1 to 10000"),
        ({"limit": None}, TypeError, "limit: an int"),
        ({"queue": ""}, ValueError, "queue: 1 to 200"),
    ],
)
def test_wrong_arguments_of_reclaim_are_refused(
    conn: psycopg.Connection, wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        reclaim(conn, **wrong)


# --- cleanup ---

either_way = pytest.mark.parametrize("archive", [False, True], ids=["delete", "archive"])


def finished(rows: Rows, status: str, days: float, count: int = 1) -> list[int]:
    ids = rows.add(count, status=status)
    for job_id in ids:
        rows.age(job_id, "finished_at", days * DAY)
    return ids


@either_way
def test_mig_07_finished_jobs_go_after_their_time_and_no_day_sooner(
    conn: psycopg.Connection, rows: Rows, *, archive: bool
) -> None:
    kept = [
        *finished(rows, "done", 6.99),
        *finished(rows, "failed", 29.99),
        *finished(rows, "cancelled", 29.99),
    ]
    finished(rows, "done", 7.01)
    finished(rows, "failed", 30.01)
    finished(rows, "cancelled", 30.01)
    assert cleanup(conn, archive=archive) == 3
    assert [row["id"] for row in rows.all()] == kept
    assert len(rows.all("jobs_archive")) == (3 if archive else 0)
    assert cleanup(conn, archive=archive) == 0


@either_way
@pytest.mark.parametrize("status", ["queued", "running"])
def test_mig_07_an_unfinished_job_never_goes(
    conn: psycopg.Connection, rows: Rows, status: str, *, archive: bool
) -> None:
    [job_id] = rows.add(status=status, locked_until="2020-01-01Z", created_at="2020-01-01Z")
    rows.age(job_id, "finished_at", 9999 * DAY / 10)
    assert cleanup(conn, done=timedelta(0), failed=timedelta(0), archive=archive) == 0
    assert rows.statuses() == [status]


@either_way
def test_each_kind_of_end_has_its_own_time(
    conn: psycopg.Connection, rows: Rows, *, archive: bool
) -> None:
    for status in FINISHED:
        finished(rows, status, 3)
    assert cleanup(conn, archive=archive, done=timedelta(days=2), failed=timedelta(days=4)) == 1
    assert rows.statuses() == ["failed", "cancelled"]
    assert cleanup(conn, archive=archive, done=timedelta(days=4), failed=timedelta(days=2)) == 2


def test_a_job_whose_place_in_the_archive_is_taken_is_kept(
    conn: psycopg.Connection, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """A sequence that was set back gives an id out twice."""
    ids = finished(rows, "done", 8, count=3)
    conn.execute(
        "INSERT INTO pgq_core.jobs_archive SELECT * FROM pgq_core.jobs WHERE id = %s", [ids[1]]
    )
    assert cleanup(conn, archive=True) == 2
    assert [row["id"] for row in rows.all()] == [ids[1]]
    assert "batch refused" in caplog.text


@either_way
@pytest.mark.parametrize("status", FINISHED)
def test_a_finished_job_without_an_end_counts_from_its_beginning(
    conn: psycopg.Connection, rows: Rows, status: str, *, archive: bool
) -> None:
    """Plain SQL may have left finished_at out."""
    [old] = rows.add(status=status)
    rows.age(old, "created_at", 31 * DAY)
    [young] = rows.add(status=status)
    assert cleanup(conn, archive=archive) == 1
    assert [row["id"] for row in rows.all()] == [young]


@either_way
def test_the_oldest_go_first(conn: psycopg.Connection, rows: Rows, *, archive: bool) -> None:
    ages = [10, 30, 20, 40]
    ids = [finished(rows, "done", days)[0] for days in ages]
    times = iter([10, 10, 0])
    cleanup(conn, archive=archive, limit=1, time_left=lambda: timedelta(seconds=next(times)))
    assert [row["id"] for row in rows.all()] == [ids[0], ids[2]]


@either_way
def test_mig_06_cleanup_commits_each_batch_and_stops_before_the_time_is_up(
    conn: psycopg.Connection, rows: Rows, *, archive: bool
) -> None:
    finished(rows, "done", 8, count=35)
    left = iter([60.0, 30.0, 5.1, 5.0])
    seen: list[int] = []

    def time_left() -> timedelta:
        seen.append(len(rows.all()))  # by another connection: what is committed
        return timedelta(seconds=next(left))

    assert cleanup(conn, archive=archive, limit=10, time_left=time_left) == 30
    assert seen == [35, 25, 15, 5]
    assert cleanup(conn, archive=archive) == 5


def test_cleanup_ends_with_a_batch_that_is_not_full(conn: psycopg.Connection, rows: Rows) -> None:
    finished(rows, "done", 8, count=25)
    asked = []

    def time_left() -> timedelta:
        asked.append(1)
        return MINUTE

    assert cleanup(conn, limit=10, time_left=time_left) == 25
    assert len(asked) == 4  # before each of three batches, and there is no fourth


@either_way
def test_a_batch_is_bounded_over_all_kinds_of_ends(
    conn: psycopg.Connection, rows: Rows, *, archive: bool
) -> None:
    for status in FINISHED:
        finished(rows, status, 31, count=3)
    time_left = (timedelta(seconds=seconds) for seconds in (10, 0))
    assert cleanup(conn, archive=archive, limit=4, time_left=time_left.__next__) == 4


def test_an_archived_job_is_kept_with_every_column(conn: psycopg.Connection, rows: Rows) -> None:
    [job_id] = finished(rows, "failed", 31)
    rows.change(
        job_id,
        payload='{"a": 1}',
        headers='{"h": 2}',
        attempts=5,
        released=2,
        settled=4,
        settled_as="fail",
        crashed=1,
        unique_key="k",
        last_error="no",
        locked_until="2020-01-01Z",
        locked_by="w",
        unknown_since="2021-01-01Z",
        priority=0,
        max_attempts=9,
        queue="q",
    )
    before = rows.read(job_id)
    assert None not in before.values()
    assert cleanup(conn, archive=True) == 1
    assert rows.all() == []
    archived = rows.all("jobs_archive")
    archived_at = archived[0].pop("archived_at")
    assert archived == [before]
    assert archived_at > before["finished_at"]


@either_way
def test_a_locked_job_stays_for_the_next_cleanup(
    conn: psycopg.Connection, rows: Rows, locked: Locked, *, archive: bool
) -> None:
    first, _ = finished(rows, "done", 8, count=2)
    conn.execute("SET lock_timeout = '2s'")
    with locked(first, "KEY SHARE"):
        assert cleanup(conn, archive=archive) == 1
    assert cleanup(conn, archive=archive) == 1


@either_way
@pytest.mark.parametrize(
    "hold",
    [
        """CREATE TABLE orders (job_id bigint REFERENCES pgq_core.jobs);
           INSERT INTO orders SELECT id FROM pgq_core.jobs WHERE id IN (3, 17)""",
        """CREATE TABLE orders (job_id bigint REFERENCES pgq_core.jobs ON DELETE RESTRICT);
           INSERT INTO orders SELECT id FROM pgq_core.jobs WHERE id IN (3, 17)""",
        """CREATE TABLE orders (job_id bigint REFERENCES pgq_core.jobs
               DEFERRABLE INITIALLY DEFERRED);
           INSERT INTO orders SELECT id FROM pgq_core.jobs WHERE id IN (3, 17)""",
        """CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
               'BEGIN RAISE EXCEPTION ''an order needs it''; END';
           CREATE TRIGGER keep BEFORE DELETE ON pgq_core.jobs FOR EACH ROW
               WHEN (OLD.id IN (3, 17)) EXECUTE FUNCTION keep()""",
    ],
    ids=["foreign key", "restrict", "deferred", "trigger"],
)
def test_mig_08_a_job_that_the_application_holds_on_to_keeps_no_other(
    conn: psycopg.Connection,
    rows: Rows,
    caplog: pytest.LogCaptureFixture,
    *,
    archive: bool,
    hold: str,
) -> None:
    finished(rows, "done", 8, count=20)
    finished(rows, "failed", 31, count=5)
    conn.execute(hold.encode())
    assert cleanup(conn, archive=archive, limit=10) == 23
    assert [row["id"] for row in rows.all()] == [3, 17]
    assert len(rows.all("jobs_archive")) == (23 if archive else 0)
    assert "batch refused, trying a smaller one" in caplog.messages


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"limit": 0}, "limit: 1 to 10000"),
        ({"limit": 10_001}, "limit: 1 to 10000"),
        ({"done": timedelta(days=-1)}, "done, failed: 0 days or more"),
        ({"failed": timedelta(days=-1)}, "done, failed: 0 days or more"),
    ],
)
def test_wrong_arguments_of_cleanup_are_refused(
    conn: psycopg.Connection, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        cleanup(conn, **wrong)


def test_cleanup_needs_a_connection_on_which_it_can_commit(
    conn: psycopg.Connection, connect: Connect
) -> None:
    with conn.transaction(), pytest.raises(OpenTransaction):
        cleanup(conn)
    with pytest.raises(OpenTransaction):
        cleanup(connect(autocommit=False))
