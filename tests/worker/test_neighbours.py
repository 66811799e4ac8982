"""One bad job never takes another job of its batch with it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from pgq_core import DrainReport, Enqueued, Job, Retry, Tasks, claim, jobs, reaper, worker
from tests.worker.fakes import Drain, Look, Put, Statements, TimeLeft, Value, until

MINUTE = timedelta(minutes=1)


def age_and_reclaim(conn: psycopg.Connection, job_id: int) -> None:
    """Let another find that the lease of this job is over."""
    past = "locked_until = now() - interval '1 second'"
    conn.execute(f"UPDATE pgq_core.jobs SET {past} WHERE id = %s", [job_id])
    reaper.reclaim(conn)


def age_leases(conn: psycopg.Connection) -> None:
    """Let every lease be over, and everything queued be due."""
    past = "now() - interval '1 second'"
    conn.execute(f"UPDATE pgq_core.jobs SET locked_until = {past} WHERE status = 'running'")
    conn.execute(f"UPDATE pgq_core.jobs SET run_at = {past} WHERE status = 'queued'")


@pytest.fixture
def crash(dsn: str, conn: psycopg.Connection) -> Callable[[], int]:
    """Let a worker process work, and time pass after it; return its exit code."""
    conn.execute("CREATE TABLE starts (job_id bigint)")
    program = [sys.executable, str(Path(__file__).with_name("crash.py")), dsn]

    def crash() -> int:
        age_leases(conn)
        reaper.reclaim(conn)
        age_leases(conn)
        return subprocess.run(program, check=False, timeout=30, env=os.environ).returncode

    return crash


def test_lse_08_a_job_that_kills_its_process_ends_failed_and_costs_its_neighbours_one_attempt(
    crash: Callable[[], int], put: Put, look: Look, conn: psycopg.Connection, value: Value
) -> None:
    before = [put(), put()]
    poison = put("poison", max_attempts=3)
    after = [put(), put()]
    codes = [crash() for _ in range(4)]
    assert codes == [137, 137, 137, 0]
    assert value("SELECT count(*) FROM starts WHERE job_id = %s", poison.id) == 3
    assert look(poison).status == "failed"
    assert str(look(poison).last_error).startswith("lease expired: attempt 3 was never settled by")
    for job in before + after:
        assert look(job).status == "done"
        assert look(job).attempt <= 2
        assert value("SELECT count(*) FROM starts WHERE job_id = %s", job.id) <= 2
    assert value("SELECT sum(crashed) FROM pgq_core.jobs WHERE status = 'done'") == 0
    assert reaper.reclaim(conn) == []


def test_two_poison_jobs_cost_the_others_two_attempts_at_most(
    crash: Callable[[], int], put: Put, look: Look
) -> None:
    poisons = [put("poison", max_attempts=2), put("poison", max_attempts=2)]
    others = [put(), put(), put()]
    while crash():
        pass
    assert [look(job).status for job in poisons] == ["failed", "failed"]
    assert [look(job).status for job in others] == ["done"] * 3
    assert max(look(job).attempt for job in others) <= 3


def mark_crashed(conn: psycopg.Connection, *ids: Enqueued) -> None:
    conn.execute(
        "UPDATE pgq_core.jobs SET crashed = 1, attempts = 1, priority = 0 WHERE id = ANY (%s)",
        [[job.id for job in ids]],
    )


def test_jobs_that_crashed_run_first_and_alone(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    seen: dict[int, dict[int, str]] = {}

    @tasks.handler("a")
    def note(job: Job) -> None:
        seen[job.id] = {other.id: other.status for other in jobs.find(conn)}

    innocent, first, second = put("a"), put("a"), put("a")
    mark_crashed(conn, first, second)
    assert drain() == DrainReport(claimed=6, done=3, released=3)
    assert list(seen) == [first.id, second.id, innocent.id]
    assert seen[first.id] == {innocent.id: "queued", first.id: "running", second.id: "queued"}
    assert seen[second.id] == {innocent.id: "queued", first.id: "done", second.id: "running"}
    assert (look(second).attempt, look(second).crashed) == (2, 0)


def test_being_handed_back_does_not_clear_a_jobs_crashes(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain
) -> None:
    crashes: list[int] = []
    first, second = put(), put("a")
    tasks.handler("a")(lambda job: crashes.append(job.crashed))
    mark_crashed(conn, first, second)
    assert drain() == DrainReport(claimed=3, done=2, released=1)
    assert crashes == [1]


def test_a_finished_job_is_done_for_others_while_its_neighbour_runs(
    tasks: Tasks, put: Put, drain: Drain, look: Look, value: Value
) -> None:
    ended = []
    tasks.handler("quick")(lambda _job: ended.append(value("SELECT clock_timestamp()")))
    tasks.handler("long")(lambda _job: until(lambda: look(quick).status == "done"))
    quick, _long = put("quick"), put("long")
    assert drain() == DrainReport(claimed=2, done=2)
    finished = value("SELECT finished_at FROM pgq_core.jobs WHERE id = %s", quick.id)
    assert (finished - ended[0]).total_seconds() < 0.1 + 0.3  # the promise, and a busy machine


def test_a_second_finished_job_is_not_forgotten_beside_a_long_one(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("long")(lambda _job: until(lambda: look(second).status == "done"))
    put()
    tasks.handler("pause")(lambda _job: time.sleep(0.2))
    put("pause")
    second, _long = put(), put("long")
    assert drain() == DrainReport(claimed=4, done=4)


def test_a_lost_lease_is_counted_and_changes_nothing_else(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("a")(lambda job: jobs.cancel(conn, job.id))
    lost, other = put("a"), put()
    assert drain() == DrainReport(claimed=2, done=1, lost=1)
    assert look(lost).status == "cancelled"
    assert look(other).status == "done"


@pytest.mark.parametrize("ending", [None, ValueError("no")])
def test_lse_02_a_job_taken_over_by_another_worker_is_left_to_it(
    ending: object, conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    @tasks.handler("slow")
    def slow(_job: Job) -> None:
        age_leases(conn)
        reaper.reclaim(conn)
        age_leases(conn)
        taken.extend(claim.claim(conn, "default", 1, MINUTE, worker="another"))
        if isinstance(ending, ValueError):
            raise ending

    taken: list[Job] = []
    job = put("slow")
    report = drain()
    assert (report.claimed, report.lost, report.done + report.retried) == (1, 1, 0)
    assert (look(job).status, look(job).locked_by, look(job).attempts) == ("running", "another", 2)


def hold_for_two_seconds(application: psycopg.Connection, job: Job) -> None:
    """Lock the job's row; its lease, else of minutes, ends before a test loses patience."""
    shorter = "UPDATE pgq_core.jobs SET locked_until = now() + interval '2 s' WHERE id = %s"
    application.execute(shorter, [job.id])
    application.commit()
    application.execute("SELECT FROM pgq_core.jobs WHERE id = %s FOR UPDATE", [job.id])


def test_a_row_locked_elsewhere_holds_up_no_neighbour(
    connect: Callable[..., psycopg.Connection], tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    application = connect(autocommit=False)

    @tasks.handler("locks")
    def locks(job: Job) -> None:
        application.execute("SELECT FROM pgq_core.jobs WHERE id = %s FOR UPDATE", [job.id])

    @tasks.handler("long")
    def long(_job: Job) -> None:
        until(lambda: look(free).status == "done")
        assert look(locked).status == "running"
        application.rollback()

    locked, free, _long = put("locks"), put(), put("long")
    assert drain() == DrainReport(claimed=3, done=3)


@pytest.mark.parametrize("answer", [None, Retry("later")], ids=["done", "retried"])
def test_a_row_locked_elsewhere_keeps_no_neighbour_from_starting(
    answer: object,
    connect: Callable[..., psycopg.Connection],
    tasks: Tasks,
    put: Put,
    drain: Drain,
    look: Look,
) -> None:
    application = connect(autocommit=False)
    started: list[float] = []

    @tasks.handler("locks")
    def locks(job: Job) -> object:
        hold_for_two_seconds(application, job)
        return answer

    @tasks.handler("next")
    def next_one(_job: Job) -> None:
        started.append(time.monotonic())
        application.rollback()

    tasks.handler("pause")(lambda _job: time.sleep(0.2))
    locked, *_ = [put(task) for task in ("locks", "pause", "next")]
    began = time.monotonic()
    assert drain().lost == 0
    assert started[0] - began < 1.5
    assert look(locked).status == ("queued" if answer else "done")


def test_an_unstarted_jobs_row_locked_elsewhere_keeps_no_neighbour_from_starting(
    connect: Callable[..., psycopg.Connection], tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    application = connect(autocommit=False)
    started: list[float] = []

    @tasks.handler("locks")
    def locks(_job: Job) -> None:
        hold_for_two_seconds(application, look(unstarted))

    @tasks.handler("long", timeout=10 * MINUTE)
    def long(_job: Job) -> None:
        started.append(time.monotonic())
        application.rollback()

    _, _, unstarted = put("locks"), put("long"), put("long")
    began = time.monotonic()
    drain()
    assert started[0] - began < 1.5


def test_a_row_locked_elsewhere_does_not_outlast_the_invocation(
    connect: Callable[..., psycopg.Connection], tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    application, left = connect(autocommit=False), TimeLeft(60)

    @tasks.handler("locks")
    def locks(job: Job) -> None:
        hold_for_two_seconds(application, job)
        left.seconds = 2.6

    locked, unstarted = put("locks"), put()
    began = time.monotonic()
    assert drain(time_left=left) == DrainReport(claimed=2, released=1, lost=1)
    assert time.monotonic() - began < 1.5
    assert look(locked).status == "running", "its lease brings it back"
    assert (look(unstarted).status, look(unstarted).attempt) == ("queued", 0)


def test_clm_08_an_unknown_task_is_put_off_and_its_neighbours_run(
    put: Put, drain: Drain, look: Look, value: Value, caplog: pytest.LogCaptureFixture
) -> None:
    unknown, *known = put("of a newer release", max_attempts=1), *(put() for _ in range(5))
    assert drain() == DrainReport(claimed=6, done=5, snoozed=1)
    assert {look(job).status for job in known} == {"done"}
    assert (look(unknown).status, look(unknown).attempt) == ("queued", 0)
    wait = "SELECT extract(epoch FROM run_at - now())::float FROM pgq_core.jobs WHERE id = %s"
    assert value(wait, unknown.id) == pytest.approx(60, abs=5)
    assert "unknown task" in caplog.messages


def test_clm_08_an_unknown_task_is_done_by_the_first_worker_that_knows_it(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, look: Look, value: Value
) -> None:
    job = put("of a newer release", max_attempts=1)
    assert drain() == DrainReport(claimed=1, snoozed=1)
    tasks.handler("of a newer release")(lambda _job: None)
    age_leases(conn)
    assert drain() == DrainReport(claimed=1, done=1)
    assert (look(job).status, look(job).attempt) == ("done", 1)
    assert value("SELECT unknown_since IS NULL FROM pgq_core.jobs")


def test_an_unknown_task_ends_failed_after_a_day(
    conn: psycopg.Connection, put: Put, drain: Drain, look: Look
) -> None:
    job = put("of a lost release")
    conn.execute("UPDATE pgq_core.jobs SET unknown_since = now() - interval '25 hours'")
    assert drain() == DrainReport(claimed=1, failed=1)
    assert (look(job).status, look(job).last_error) == (
        "failed",
        "no worker knows the task 'of a lost release'",
    )


@pytest.mark.parametrize("task", ["ok", "of a newer release"])
def test_an_undecodable_job_fails_alone_and_for_good(
    task: str, conn: psycopg.Connection, put: Put, drain: Drain, look: Look
) -> None:
    first, bad, last = put(), put(task), put()
    conn.execute(
        "UPDATE pgq_core.jobs SET payload = format('{\"n\": %%s}', repeat('9', 5000))::jsonb "
        "WHERE id = %s",
        [bad.id],
    )
    assert drain() == DrainReport(claimed=3, done=2, failed=1)
    assert [look(job).status for job in (first, bad, last)] == ["done", "failed", "done"]
    assert str(look(bad).last_error).startswith("BadPayload: payload cannot be decoded")


def test_a_neighbour_locked_elsewhere_does_not_hold_up_a_job_that_crashed(
    conn: psycopg.Connection,
    connect: Callable[..., psycopg.Connection],
    tasks: Tasks,
    put: Put,
    drain: Drain,
    statements: Statements,
) -> None:
    application = connect(autocommit=False)
    ran: list[int] = []

    @tasks.handler("a")
    def a(job: Job) -> None:
        ran.append(job.id)
        application.rollback()

    def lock() -> None:
        if not ran:
            query = "SELECT FROM pgq_core.jobs WHERE id = %s FOR UPDATE"
            application.execute(query, [locked.id])

    suspect, locked, other = put("a"), put("a"), put("a")
    mark_crashed(conn, suspect)
    statements.before = {"release": lock}
    assert drain().done == 3
    assert ran[0] == suspect.id
    assert sorted(ran) == [suspect.id, locked.id, other.id]


@pytest.mark.parametrize("act", [jobs.cancel, age_and_reclaim], ids=["cancelled", "lost"])
def test_what_is_not_ours_any_more_is_not_started(
    act: Callable[[psycopg.Connection, int], object],
    conn: psycopg.Connection,
    tasks: Tasks,
    put: Put,
    drain: Drain,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was claimed, and waits for its neighbour to end."""
    monkeypatch.setattr(worker, "FRESH", 0)
    ran: list[int] = []
    tasks.handler("first")(lambda _job: act(conn, second.id))
    tasks.handler("second")(lambda job: ran.append(job.id))
    put("first")
    second, third = put("second"), put("second")
    report = drain()
    assert ran == [third.id]
    assert (report.done, report.lost) == (2, 1)


def test_a_row_of_poison_jobs_costs_an_innocent_one_attempt(
    crash: Callable[[], int], put: Put, look: Look
) -> None:
    innocents = [put(), put()]
    for _ in range(5):
        put("poison", max_attempts=1, priority=0)
        assert crash() == 137
    while crash():
        pass
    assert [look(job).status for job in innocents] == ["done", "done"]
    assert max(look(job).attempt for job in innocents) == 2
