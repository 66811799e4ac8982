"""Jobs: looked at, cancelled and tried again by hand."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from pgq_core import Job, enqueue, jobs
from pgq_core.claim import claim
from pgq_core.fence import discard
from pgq_core.reaper import reclaim
from tests.conftest import Connect
from tests.sql.conftest import Locked
from tests.sql.rows import Rows

MINUTE = timedelta(minutes=1)
UNFINISHED = ["queued", "running"]
FINISHED = ["done", "failed", "cancelled"]


# --- get and find ---


def test_a_job_is_read_by_its_id(conn: psycopg.Connection, job: Job) -> None:
    assert jobs.get(conn, job.id) == job
    assert jobs.get(conn, job.id + 1) is None


@pytest.mark.parametrize(
    ("wrong", "error"), [(0, ValueError), (2**63, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_what_is_no_id_is_refused(
    conn: psycopg.Connection, wrong: Any, error: type[Exception]
) -> None:
    for act in (jobs.get, jobs.cancel, jobs.retry):
        with pytest.raises(error, match="id: "):
            act(conn, wrong)
    with pytest.raises(error, match="id: "):
        jobs.find(conn, before=wrong)


def test_jobs_are_found_newest_first_page_by_page(conn: psycopg.Connection, rows: Rows) -> None:
    ids = rows.add(7)[::-1]
    first = [job.id for job in jobs.find(conn, limit=3)]
    second = [job.id for job in jobs.find(conn, limit=3, before=first[-1])]
    third = [job.id for job in jobs.find(conn, limit=3, before=second[-1])]
    assert [first, second, third] == [ids[:3], ids[3:6], ids[6:]]
    assert jobs.find(conn, before=ids[-1]) == []


def test_a_page_holds_50_jobs_unless_said_otherwise(conn: psycopg.Connection, rows: Rows) -> None:
    rows.add(51)
    assert len(jobs.find(conn)) == 50
    assert len(jobs.find(conn, limit=1000)) == 51


@pytest.mark.parametrize(
    "wanted",
    [{"queue": "q"}, {"task": "other"}, {"status": "done"}, {"unique_key": "k"}],
    ids=lambda wanted: next(iter(wanted)),
)
def test_each_filter_keeps_what_fits(
    conn: psycopg.Connection, rows: Rows, wanted: dict[str, Any]
) -> None:
    rows.add(2)
    ids = rows.add(1, **wanted)
    rows.add(2)
    assert [job.id for job in jobs.find(conn, **wanted)] == ids


def test_filters_hold_together(conn: psycopg.Connection, rows: Rows) -> None:
    rows.add(queue="q")
    rows.add(status="failed")
    ids = rows.add(queue="q", status="failed")
    assert [job.id for job in jobs.find(conn, queue="q", status="failed")] == ids


@pytest.mark.parametrize("limit", [0, 1001])
def test_a_page_is_bounded(conn: psycopg.Connection, limit: int) -> None:
    with pytest.raises(ValueError, match="limit: 1 to 1000"):
        jobs.find(conn, limit=limit)


def test_a_job_that_cannot_be_decoded_is_shown_all_the_same(
    conn: psycopg.Connection, rows: Rows
) -> None:
    [bad] = rows.add(payload='{"n": 1' + "0" * 5000 + "}")
    [job] = jobs.find(conn)
    assert (job.id, job.payload) == (bad, {})
    assert job.problem is not None
    assert jobs.get(conn, bad) is not None


# --- cancel ---


def test_a_queued_job_is_cancelled_for_good(conn: psycopg.Connection, rows: Rows) -> None:
    [job_id] = rows.add()
    assert jobs.cancel(conn, job_id) == "cancelled"
    assert -5 < rows.seconds_to(job_id, "finished_at") <= 0
    assert claim(conn, "default", 1, MINUTE) == []


def test_a_running_job_is_cancelled_and_keeps_the_end_of_its_lease(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    assert jobs.cancel(conn, job.id) == "cancelled"
    row = rows.read(job)
    assert (row["status"], row["locked_until"]) == ("cancelled", job.locked_until)
    rows.expire(job)
    assert reclaim(conn) == []


@pytest.mark.parametrize("status", FINISHED)
def test_a_finished_job_is_not_cancelled(conn: psycopg.Connection, rows: Rows, status: str) -> None:
    [job_id] = rows.add(status=status)
    before = rows.read(job_id)
    assert jobs.cancel(conn, job_id) is None
    assert rows.read(job_id) == before


def test_nothing_is_cancelled_or_tried_again_where_there_is_no_job(
    conn: psycopg.Connection,
) -> None:
    assert jobs.cancel(conn, 1) is None
    assert jobs.retry(conn, 1) is None


def test_a_cancelled_job_gives_its_key_free(conn: psycopg.Connection) -> None:
    first = enqueue(conn, "t", {}, unique_key="k")
    jobs.cancel(conn, first.id)
    assert enqueue(conn, "t", {}, unique_key="k").inserted


# --- retry ---


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_retry_gives_a_job_all_its_attempts_again(
    conn: psycopg.Connection, rows: Rows, status: str
) -> None:
    [job_id] = rows.add(
        status=status,
        attempts=5,
        released=2,
        max_attempts=3,
        crashed=2,
        last_error="no",
        unknown_since="2020-01-01Z",
        finished_at="2020-01-01Z",
        locked_by="w",
        at=-500,
    )
    assert jobs.retry(conn, job_id) == "queued"
    row = rows.read(job_id)
    assert (row["status"], row["attempts"], row["released"], row["crashed"]) == ("queued", 5, 5, 2)
    assert (row["unknown_since"], row["finished_at"], row["locked_by"]) == (None, None, None)
    assert row["last_error"] == "no"
    assert -5 < rows.seconds_to(job_id) <= 0
    [job] = claim(conn, "default", 1, MINUTE)
    assert (job.attempts, job.attempt) == (6, 1)


@pytest.mark.parametrize("status", ["queued", "running", "done"])
def test_only_a_failed_or_cancelled_job_is_tried_again(
    conn: psycopg.Connection, rows: Rows, status: str
) -> None:
    [job_id] = rows.add(status=status, locked_until="2030-01-01Z")
    before = rows.read(job_id)
    assert jobs.retry(conn, job_id) is None
    assert rows.read(job_id) == before


def test_a_retry_never_overlaps_the_lease_of_a_cancelled_run(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    jobs.cancel(conn, job.id)
    assert jobs.retry(conn, job.id) == "queued"
    row = rows.read(job)
    assert (row["run_at"], row["locked_until"]) == (job.locked_until, job.locked_until)
    assert claim(conn, "default", 1, MINUTE) == []


def test_a_second_retry_never_overlaps_it_either(conn: psycopg.Connection, job: Job) -> None:
    for _ in range(2):
        jobs.cancel(conn, job.id)
        jobs.retry(conn, job.id)
    assert claim(conn, "default", 1, MINUTE) == []


def test_a_retry_after_the_lease_of_a_cancelled_run_is_due_at_once(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    jobs.cancel(conn, job.id)
    rows.expire(job)
    jobs.retry(conn, job.id)
    assert [again.id for again in claim(conn, "default", 1, MINUTE)] == [job.id]


@pytest.mark.parametrize("status", UNFINISHED)
def test_a_job_whose_key_is_in_use_again_is_not_tried_again(
    conn: psycopg.Connection, rows: Rows, status: str
) -> None:
    [job_id] = rows.add(status="failed", unique_key="k")
    rows.add(status=status, unique_key="k", locked_until="2030-01-01Z")
    before = rows.read(job_id)
    assert jobs.retry(conn, job_id) is None
    assert rows.read(job_id) == before


def test_a_key_in_use_elsewhere_or_by_the_past_hinders_no_retry(
    conn: psycopg.Connection, rows: Rows
) -> None:
    [job_id] = rows.add(status="failed", unique_key="k")
    rows.add(unique_key="k", queue="other")
    rows.add(unique_key="k", status="done")
    rows.add(unique_key="other")
    assert jobs.retry(conn, job_id) == "queued"


def test_a_discarded_job_can_be_tried_again_and_fails_anew(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    discard(conn, job, "first")
    jobs.retry(conn, job.id)
    [again] = claim(conn, "default", 1, MINUTE)
    discard(conn, again, "second")
    assert rows.read(job)["last_error"] == "second"


# --- transactions ---


def test_cancel_and_retry_are_part_of_the_transaction_that_is_open(
    connect: Connect, rows: Rows
) -> None:
    [job_id] = rows.add()
    mine = connect(autocommit=False)
    jobs.cancel(mine, job_id)
    jobs.retry(mine, job_id)
    jobs.cancel(mine, job_id)
    assert rows.statuses() == ["queued"]
    assert mine.info.transaction_status == TransactionStatus.INTRANS
    mine.commit()
    assert rows.statuses() == ["cancelled"]


def test_a_cancel_waits_for_a_row_that_is_locked(
    conn: psycopg.Connection, rows: Rows, locked: Locked
) -> None:
    """A person's word is not skipped: it waits, and the driver says when it may not."""
    [job_id] = rows.add()
    conn.execute("SET lock_timeout = '50ms'")
    with locked(job_id), pytest.raises(psycopg.errors.LockNotAvailable):
        jobs.cancel(conn, job_id)
