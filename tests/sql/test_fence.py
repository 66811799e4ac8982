"""Fence: a write after a claim is for the claim that holds the job; every other changes nothing."""

from datetime import timedelta
from itertools import permutations
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from pgq_core import Job, errors, fence, jobs
from pgq_core.claim import claim
from pgq_core.reaper import reclaim
from tests.conftest import Connect
from tests.sql.conftest import Locked
from tests.sql.rows import Rows
from tests.sql.verbs import (
    COMPLETE,
    DISCARD,
    EXTEND,
    FAIL,
    RELEASE,
    SETTLING,
    SNOOZE,
    UNKNOWN,
    VERBS,
    Verb,
)

MINUTE = timedelta(minutes=1)
HOUR, DAY = 3600.0, 86400.0

every_verb = pytest.mark.parametrize("verb", VERBS, ids=str)
every_settling_verb = pytest.mark.parametrize("verb", SETTLING, ids=str)


def claimed(conn: psycopg.Connection) -> Job:
    [job] = claim(conn, "default", 1, MINUTE, worker="invocation-2")
    return job


def reclaimed(conn: psycopg.Connection, rows: Rows, job: Job) -> None:
    rows.expire(job)
    assert [back.id for back in reclaim(conn)] == [job.id]


def claimed_again(conn: psycopg.Connection, rows: Rows, job: Job) -> Job:
    rows.age(job, "run_at", 0)
    return claimed(conn)


# --- the same four for every verb ---


@every_verb
def test_the_holder_of_a_job_may_write(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    assert verb(conn, job)
    assert rows.read(job)["status"] == verb.leaves


@every_verb
def test_an_expired_lease_that_nobody_reclaimed_may_still_write(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    rows.expire(job)
    assert verb(conn, job)
    assert rows.read(job)["status"] == verb.leaves


@every_verb
def test_a_reclaimed_job_refuses_its_old_claim(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    reclaimed(conn, rows, job)
    before = rows.read(job)
    assert not verb(conn, job)
    assert rows.read(job) == before


@every_verb
def test_lse_02_a_job_claimed_again_refuses_its_old_claim_and_obeys_the_new_one(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    reclaimed(conn, rows, job)
    new = claimed_again(conn, rows, job)
    before = rows.read(job)
    assert not verb(conn, job)
    assert rows.read(job) == before
    assert verb(conn, new)


@every_verb
@pytest.mark.parametrize("end", [COMPLETE, DISCARD], ids=str)
def test_a_job_finished_under_another_claim_refuses_the_old_one(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb, end: Verb
) -> None:
    reclaimed(conn, rows, job)
    assert end(conn, claimed_again(conn, rows, job))
    before = rows.read(job)
    assert not verb(conn, job)
    assert rows.read(job) == before


@every_verb
def test_ack_11_a_cancelled_job_refuses_its_claim(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    jobs.cancel(conn, job.id)
    before = rows.read(job)
    assert not verb(conn, job)
    assert rows.read(job) == before


@every_verb
def test_a_job_cancelled_and_queued_again_refuses_its_claim(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    jobs.cancel(conn, job.id)
    jobs.retry(conn, job.id)
    before = rows.read(job)
    assert not verb(conn, job)
    assert rows.read(job) == before


@every_verb
def test_a_job_deleted_meanwhile_refuses_its_claim(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    rows.conn.execute("DELETE FROM pgq_core.jobs")
    assert not verb(conn, job)


@every_verb
def test_a_write_under_a_claim_touches_no_other_job(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    rows.add(2)
    rows.add(status="done")
    claimed(conn)
    before = [row for row in rows.all() if row["id"] != job.id]
    assert verb(conn, job)
    assert [row for row in rows.all() if row["id"] != job.id] == before


# --- lost replies ---


@every_settling_verb
def test_a_write_repeated_after_a_lost_reply_succeeds_and_changes_nothing_more(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    assert verb(conn, job)
    before = rows.read(job)
    assert verb(conn, job)
    assert rows.read(job) == before


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in permutations(SETTLING, 2) if COMPLETE in pair],
    ids=str,
)
def test_a_completion_and_another_end_of_one_claim_are_never_taken_for_each_other(
    conn: psycopg.Connection, rows: Rows, job: Job, first: Verb, second: Verb
) -> None:
    assert first(conn, job)
    before = rows.read(job)
    assert not second(conn, job)
    assert rows.read(job) == before


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in permutations(SETTLING, 2) if COMPLETE not in pair],
    ids=str,
)
def test_only_the_same_write_is_taken_for_a_repeated_one(
    conn: psycopg.Connection, rows: Rows, job: Job, first: Verb, second: Verb
) -> None:
    assert first(conn, job)
    before = rows.read(job)
    assert not second(conn, job)
    assert rows.read(job) == before


def test_a_repeated_write_counts_as_lost_where_that_is_asked_for(
    conn: psycopg.Connection, job: Job
) -> None:
    assert fence.write(conn, "complete", [job], replay=False) == {job.id: "done"}
    assert fence.write(conn, "complete", [job], replay=False) == {}
    assert fence.write(conn, "complete", [job]) == {job.id: "done"}


@every_settling_verb
def test_nothing_extends_a_settled_job(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    assert verb(conn, job)
    before = rows.read(job)
    assert not EXTEND(conn, job)
    assert rows.read(job) == before


@pytest.mark.parametrize("verb", [RELEASE, FAIL, SNOOZE, UNKNOWN], ids=str)
def test_a_repeated_write_is_recognised_while_the_next_claim_runs(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    assert verb(conn, job)
    new = claimed_again(conn, rows, job)
    assert verb(conn, job)
    assert verb(conn, new)


def test_a_repeated_failure_returns_the_status_of_the_first(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(max_attempts=1)
    job = claimed(conn)
    assert fence.fail(conn, job, "first") == "failed"
    assert fence.fail(conn, job, "second") == "failed"
    assert rows.read(job)["last_error"] == "first"


def test_a_batch_completed_in_part_is_completed_in_whole_by_the_replay(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(4)
    batch = claim(conn, "default", 4, MINUTE)
    fence.complete(conn, batch[:2])
    jobs.cancel(conn, batch[3].id)
    assert fence.complete(conn, batch) == {job.id for job in batch[:3]}


# --- what each verb writes ---


def test_a_completion_ends_the_lease_and_clears_what_it_must(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    rows.change(job, crashed=1, unknown_since="2026-01-01Z", last_error="the first time")
    assert fence.complete(conn, [job]) == {job.id}
    row = rows.read(job)
    assert (row["status"], row["settled"], row["crashed"]) == ("done", 1, 0)
    assert (row["locked_until"], row["locked_by"], row["unknown_since"]) == (None, None, None)
    assert row["last_error"] == "the first time"
    assert -5 < rows.seconds_to(job, "finished_at") <= 0


def test_completing_nothing_is_no_statement(connect: Connect) -> None:
    conn = connect(autocommit=False)
    assert fence.complete(conn, []) == fence.release(conn, []) == set()
    assert conn.info.transaction_status == TransactionStatus.IDLE


def test_a_release_costs_nothing_and_proves_nothing(conn: psycopg.Connection, rows: Rows) -> None:
    rows.add(attempts=1, crashed=1, at=-100, last_error="before")
    job = claimed(conn)
    fence.release(conn, [job])
    row = rows.read(job)
    assert (row["status"], row["attempts"], row["released"], row["settled"]) == ("queued", 2, 1, 2)
    assert (row["crashed"], row["last_error"], row["run_at"]) == (1, "before", job.run_at)
    assert (row["locked_until"], row["locked_by"]) == (None, None)
    again = claimed(conn)
    assert (again.attempts, again.attempt) == (3, 2)


BACKOFF = [20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]


@pytest.mark.parametrize(("attempt", "seconds"), list(enumerate(BACKOFF, start=1)))
def test_the_backoff_is_20_s_doubling_to_an_hour(
    conn: psycopg.Connection, rows: Rows, attempt: int, seconds: int
) -> None:
    rows.add(attempts=attempt + 6, released=7, max_attempts=1000)
    job = claimed(conn)
    assert job.attempt == attempt
    assert fence.fail(conn, job, ValueError("no")) == "queued"
    assert seconds - 5 < rows.seconds_to(job) <= seconds


def test_the_backoff_of_the_thousandth_attempt_is_an_hour(
    conn: psycopg.Connection, rows: Rows
) -> None:
    """The power is capped before it is taken: 2 ^ 999 seconds is no interval."""
    rows.add(attempts=998, max_attempts=1000)
    job = claimed(conn)
    fence.fail(conn, job, "no")
    assert 3595 < rows.seconds_to(job) <= 3600


def test_a_failure_is_written_down_and_queued_again(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    rows.change(job, crashed=1, unknown_since="2026-01-01Z")
    assert fence.fail(conn, job, ValueError("no such user")) == "queued"
    row = rows.read(job)
    assert row["last_error"] == "ValueError: no such user"
    assert (row["attempts"], row["released"], row["settled"], row["crashed"]) == (1, 0, 1, 0)
    assert (row["locked_until"], row["locked_by"], row["unknown_since"]) == (None, None, None)
    assert row["finished_at"] is None


def test_the_last_attempt_fails_for_good(conn: psycopg.Connection, rows: Rows) -> None:
    rows.add(max_attempts=2)
    assert fence.fail(conn, claimed(conn), "1", retry_in=timedelta(0)) == "queued"
    rows.age(rows.all()[0]["id"], "run_at", 0)
    job = claimed(conn)
    assert fence.fail(conn, job, "2", retry_in=timedelta(0)) == "failed"
    assert rows.read(job)["status"] == "failed"
    assert -5 < rows.seconds_to(job, "finished_at") <= 0


def test_claims_not_held_against_the_job_leave_it_its_attempts(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(attempts=7, released=7, max_attempts=2)
    job = claimed(conn)
    assert fence.fail(conn, job, "the first of two") == "queued"


@pytest.mark.parametrize(
    ("asked", "seconds"), [(0, 1), (0.5, 1), (90, 90), (3650 * DAY, 3650 * DAY)]
)
def test_a_retry_waits_as_long_as_asked_but_a_second_at_least(
    conn: psycopg.Connection, rows: Rows, job: Job, asked: float, seconds: float
) -> None:
    fence.fail(conn, job, "no", retry_in=timedelta(seconds=asked))
    assert seconds - 1 < rows.seconds_to(job) <= seconds


@pytest.mark.parametrize("verb", [FAIL, DISCARD], ids=str)
@pytest.mark.parametrize(
    ("text", "stored"),
    [("a\x00b", "a\\x00b"), ("half \ud83d", "half \\ud83d"), ("🎉" * 9000, "🎉" * 7999 + "…")],
    ids=["NUL", "surrogate", "long"],
)
def test_ack_01_ack_03_an_error_that_cannot_be_stored_as_it_is_is_stored_all_the_same(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb, text: str, stored: str
) -> None:
    write: Any = {"fail": fence.fail, "discard": fence.discard}[verb.name]
    write(conn, job, text)
    assert rows.read(job)["last_error"] == stored


@pytest.mark.parametrize("seconds", [-1, 3651 * DAY])
def test_a_delay_out_of_range_is_refused_before_any_statement(
    connect: Connect, job: Job, seconds: float
) -> None:
    conn = connect(autocommit=False)
    delay = timedelta(seconds=seconds)
    with pytest.raises(ValueError, match="retry_in: 0 to 3650 days"):
        fence.fail(conn, job, "no", retry_in=delay)
    with pytest.raises(ValueError, match="delay: 0 to 3650 days"):
        fence.snooze(conn, job, delay)
    assert conn.info.transaction_status == TransactionStatus.IDLE


def test_a_snooze_is_no_failure(conn: psycopg.Connection, rows: Rows, job: Job) -> None:
    rows.change(job, crashed=1, unknown_since="2026-01-01Z", last_error="before")
    fence.snooze(conn, job, timedelta(hours=2))
    row = rows.read(job)
    assert (row["status"], row["attempts"], row["released"], row["settled"]) == ("queued", 1, 1, 1)
    assert (row["crashed"], row["unknown_since"], row["last_error"]) == (0, None, "before")
    assert (row["locked_until"], row["locked_by"]) == (None, None)
    assert 2 * HOUR - 5 < rows.seconds_to(job) <= 2 * HOUR


def test_a_discard_fails_the_job_whatever_attempts_are_left(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    rows.change(job, crashed=1, unknown_since="2026-01-01Z")
    fence.discard(conn, job, "no such address")
    row = rows.read(job)
    assert (row["status"], row["settled"], row["crashed"]) == ("failed", 1, 0)
    assert (row["last_error"], row["unknown_since"]) == ("no such address", None)
    assert (row["locked_until"], row["locked_by"]) == (None, None)
    assert -5 < rows.seconds_to(job, "finished_at") <= 0


def test_an_extension_counts_from_now_and_changes_nothing_else(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    before = rows.read(job)
    fence.extend(conn, job, timedelta(hours=1))
    assert HOUR - 5 < rows.seconds_to(job, "locked_until") <= HOUR
    assert rows.read(job) | {"locked_until": 0} == before | {"locked_until": 0}


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_lease_is_not_extended_into_the_past(connect: Connect, job: Job, seconds: float) -> None:
    conn = connect(autocommit=False)
    with pytest.raises(ValueError, match="lease: more than 0 s"):
        fence.extend(conn, job, timedelta(seconds=seconds))
    assert conn.info.transaction_status == TransactionStatus.IDLE


def test_a_lease_is_never_shortened(conn: psycopg.Connection, rows: Rows, job: Job) -> None:
    """Whoever asks for 2 s may be at work for all the time that is left of the lease."""
    fence.extend(conn, job, timedelta(seconds=2))
    assert rows.read(job)["locked_until"] == job.locked_until


def test_many_leases_are_extended_at_once_and_the_lost_ones_told(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(3)
    batch = claim(conn, "default", 3, MINUTE)
    jobs.cancel(conn, batch[1].id)
    kept = fence.extend_many(conn, batch, timedelta(hours=1))
    assert kept == {batch[0].id, batch[2].id}
    assert rows.seconds_to(batch[2], "locked_until") > HOUR - 5


def test_a_hold_can_be_asked_for(conn: psycopg.Connection, rows: Rows, job: Job) -> None:
    assert fence.holds(conn, job)
    rows.expire(job)
    assert fence.holds(conn, job)
    reclaimed(conn, rows, job)
    assert not fence.holds(conn, job)
    claimed_again(conn, rows, job)
    assert not fence.holds(conn, job)


# --- a task that no worker knows ---


@pytest.mark.parametrize(
    ("unknown_for", "wait"),
    [(None, 60), (30, 60), (90, 90), (600, 600), (1800, 1800), (2 * HOUR, HOUR), (23 * HOUR, HOUR)],
)
def test_an_unknown_task_is_put_off_as_long_as_it_has_been_unknown(
    conn: psycopg.Connection, rows: Rows, job: Job, unknown_for: float | None, wait: float
) -> None:
    rows.change(job, crashed=1)
    if unknown_for is not None:
        rows.age(job, "unknown_since", unknown_for)
    since = rows.read(job)["unknown_since"]
    assert fence.unknown(conn, job) == "queued"
    row = rows.read(job)
    assert wait - 1 < rows.seconds_to(job) <= wait + 5
    assert (row["attempts"], row["released"], row["settled"], row["crashed"]) == (1, 1, 1, 1)
    assert row["unknown_since"] == since or since is None
    assert -5 < rows.seconds_to(job, "unknown_since") + (unknown_for or 0) <= 0
    assert row["last_error"] == "no worker knows the task 't'"
    assert (row["locked_until"], row["locked_by"]) == (None, None)


def test_an_unknown_task_fails_after_24_hours(
    conn: psycopg.Connection, rows: Rows, job: Job
) -> None:
    rows.age(job, "unknown_since", DAY + 1)
    assert fence.unknown(conn, job) == "failed"
    assert -5 < rows.seconds_to(job, "finished_at") <= 0
    assert rows.read(job)["locked_until"] is None


@pytest.mark.parametrize("verb", [COMPLETE, FAIL, SNOOZE, DISCARD], ids=str)
def test_any_other_outcome_starts_the_24_hours_anew(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    rows.age(job, "unknown_since", 600)
    assert verb(conn, job)
    assert rows.read(job)["unknown_since"] is None


# --- inside a transaction of the caller ---


@every_verb
def test_a_write_is_part_of_the_transaction_that_the_caller_has_open(
    conn: psycopg.Connection, rows: Rows, job: Job, verb: Verb
) -> None:
    before = rows.read(job)
    with conn.transaction(force_rollback=True):
        assert verb(conn, job)
        assert rows.read(job) == before
    assert rows.read(job) == before


def test_a_lost_lease_leaves_the_transaction_of_the_caller_usable(
    conn: psycopg.Connection, rows: Rows, locked: Locked
) -> None:
    rows.add(2)
    locked_one, cancelled = claim(conn, "default", 2, timedelta(milliseconds=200))
    jobs.cancel(conn, cancelled.id)
    with conn.transaction(), locked(locked_one.id):
        assert fence.complete(conn, [locked_one, cancelled]) == set()
        with pytest.raises(errors.LeaseLost, match=f"job {cancelled.id} .* claim number 1"):
            fence.discard(conn, cancelled, "no")
        conn.execute("SELECT 1")
