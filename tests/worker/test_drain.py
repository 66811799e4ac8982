"""The order of a drain: wake, reclaim, look at the cap, claim until nothing is due."""

import signal
import threading
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from pgq_core import DrainReport, Enqueued, Job, Producer, Tasks, claim, queues
from tests.worker.fakes import (
    NAME,
    Drain,
    Kicks,
    Look,
    Put,
    Statements,
    Value,
    until,
)

MINUTE = timedelta(minutes=1)
MARK = "SELECT kick_requested_at FROM pgq_core.queues WHERE name = 'default'"


@pytest.fixture
def pending(conn: psycopg.Connection) -> None:
    """A kick is on its way."""
    conn.execute("INSERT INTO pgq_core.queues (name, kick_requested_at) VALUES ('default', now())")


@pytest.mark.usefixtures("pending")
def test_the_mark_is_cleared_and_committed_before_the_first_claim(
    put: Put, drain: Drain, statements: Statements, value: Value
) -> None:
    marks: list[object] = []
    statements.before["claim"] = lambda: marks.append(value(MARK))
    put()
    drain()
    assert marks == [None, None]


@pytest.mark.usefixtures("pending")
def test_a_job_whose_producer_counted_on_a_pending_kick_is_seen(
    connect: Callable[..., psycopg.Connection],
    conn: psycopg.Connection,
    value: Value,
    wait_blocked: Callable[[int], None],
    drain: Drain,
) -> None:
    """The worker is about to clear the mark when the job is committed; nobody kicks again."""
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM pgq_core.queues FOR UPDATE")
    reports: list[DrainReport] = []
    thread = threading.Thread(target=lambda: reports.append(drain()))
    thread.start()
    pid = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
    until(lambda: value(pid, NAME) is not None)
    wait_blocked(value(pid, NAME))
    kicks = Kicks()
    with Producer(kicks).transaction(conn) as tx:
        tx.enqueue("ok", {})
    holder.rollback()
    thread.join()
    assert kicks.sent == []
    assert reports == [DrainReport(claimed=1, done=1)]


def test_the_next_claim_comes_after_the_completion_of_the_last_batch(
    put: Put, drain: Drain, statements: Statements, value: Value
) -> None:
    running: list[int] = []
    count = "SELECT count(*) FROM pgq_core.jobs WHERE status = 'running'"
    statements.before["claim"] = lambda: running.append(value(count))
    for _ in range(5):
        put()
    assert drain(batch_size=2) == DrainReport(claimed=5, done=5)
    assert running == [0, 0, 0, 0]


def test_a_job_that_comes_while_the_last_one_runs_is_run_as_well(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    tasks.handler("a")(lambda _job: put())
    put("a")
    assert drain() == DrainReport(claimed=2, done=2)


def test_jobs_run_by_priority_then_in_the_order_they_fell_due(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    order: list[int] = []
    tasks.handler("a")(lambda job: order.append(job.id))
    low, first, second, high = (put("a", priority=p).id for p in (9, 5, 5, 0))
    drain()
    assert order == [high, first, second, low]


def test_only_the_named_queue_is_drained(put: Put, drain: Drain, look: Look) -> None:
    mine, other = put(queue="mail"), put()
    assert drain(queue="mail") == DrainReport(claimed=1, done=1)
    assert (look(mine).status, look(other).status) == ("done", "queued")


def test_lse_13_expired_leases_of_the_queue_are_put_back_with_a_backoff(
    conn: psycopg.Connection, put: Put, drain: Drain, look: Look
) -> None:
    jobs = [put(), put(queue="other")]
    for queue in ("default", "other"):
        claim.claim(conn, queue, 1, MINUTE)
    conn.execute("UPDATE pgq_core.jobs SET locked_until = now() - interval '1 second'")
    assert drain() == DrainReport(reclaimed=1)
    assert [look(job).status for job in jobs] == ["queued", "running"]


def test_a_thousand_expired_leases_are_not_the_end_of_it(
    conn: psycopg.Connection, drain: Drain, value: Value
) -> None:
    conn.execute(
        "INSERT INTO pgq_core.jobs (task, status, attempts, locked_until) "
        "SELECT 'ok', 'running', 1, now() - interval '1 second' FROM generate_series(1, 2500)"
    )
    assert drain().reclaimed == 2500
    assert value("SELECT count(*) FROM pgq_core.jobs WHERE status = 'running'") == 0


def test_a_paused_queue_is_left_alone(
    conn: psycopg.Connection, put: Put, drain: Drain, look: Look
) -> None:
    queues.pause(conn, "default")
    job = put()
    assert drain() == DrainReport()
    assert (look(job).status, drain.kicks.sent, drain.alarms.armed) == ("queued", [], [])
    queues.resume(conn, "default")
    assert drain() == DrainReport(claimed=1, done=1)


@pytest.fixture
def busy(conn: psycopg.Connection, put: Put) -> Callable[[int], list[Job]]:
    """Let as many other workers hold a job each."""

    def busy(workers: int) -> list[Job]:
        for _ in range(workers):
            put()
        leases = (claim.claim(conn, "default", 1, MINUTE, worker=f"w{n}") for n in range(workers))
        return [job for jobs in leases for job in jobs]

    return busy


@pytest.mark.usefixtures("pending")
@pytest.mark.parametrize(("others", "claimed"), [(9, 1), (10, 0)])
def test_with_ten_other_workers_at_work_there_is_nothing_to_do(
    others: int,
    claimed: int,
    busy: Callable[[int], list[Job]],
    put: Put,
    drain: Drain,
    value: Value,
) -> None:
    busy(others)
    put()
    assert drain().claimed == claimed
    assert value(MARK) is None, "cleared all the same, or the next commit would wake nobody"
    away = drain.alarms.armed[0] - value("SELECT now()")
    assert away.total_seconds() == pytest.approx(30 if others == 10 else 60, abs=5)


def test_a_queue_may_have_a_cap_of_its_own(
    conn: psycopg.Connection, busy: Callable[[int], list[Job]], put: Put, drain: Drain
) -> None:
    conn.execute("INSERT INTO pgq_core.queues (name, max_workers) VALUES ('default', 1)")
    [held] = busy(1)
    put()
    assert drain() == DrainReport()
    assert held.locked_by is not None
    assert drain(worker_id=held.locked_by) == DrainReport(claimed=1, done=1), "itself not counted"


@pytest.mark.parametrize("locked", [False, True])
def test_lse_04_the_dead_do_not_fill_the_cap(
    *,
    locked: bool,
    conn: psycopg.Connection,
    connect: Callable[..., psycopg.Connection],
    busy: Callable[[int], list[Job]],
    put: Put,
    drain: Drain,
) -> None:
    """Not even those whose lock keeps them from being put back."""
    busy(10)
    conn.execute("UPDATE pgq_core.jobs SET locked_until = now() - interval '1 second'")
    if locked:
        connect(autocommit=False).execute("SELECT FROM pgq_core.jobs FOR UPDATE")
    put()
    assert drain() == DrainReport(claimed=1, done=1, reclaimed=0 if locked else 10)


@pytest.mark.parametrize(
    ("jobs", "sent"),
    [
        pytest.param(2, 0, id="not a full batch"),
        pytest.param(3, 0, id="a full batch and nothing more"),
        pytest.param(4, 1, id="a full batch and more"),
    ],
)
def test_a_worker_is_recruited_for_a_backlog_before_the_batch_runs(
    jobs: int, sent: int, tasks: Tasks, put: Put, drain: Drain
) -> None:
    kicked: list[int] = []
    tasks.handler("a")(lambda _job: kicked.append(len(drain.kicks.sent)))
    for _ in range(jobs):
        put("a")
    assert drain(batch_size=3) == DrainReport(claimed=jobs, done=jobs)
    assert drain.kicks.sent == [("default", 0)] * sent
    assert kicked[0] == sent


def test_a_backlog_recruits_one_worker_per_start_latency(
    put: Put, drain: Drain, value: Value
) -> None:
    for _ in range(12):
        put()
    drain(batch_size=2)
    assert drain.kicks.sent == [("default", 0)]
    assert value(MARK) is not None, "nobody has cleared it: the recruit has not started"


def test_a_refused_recruit_is_asked_for_again(put: Put, drain: Drain) -> None:
    drain.kicks.answer = lambda: False
    for _ in range(6):
        put()
    drain(batch_size=2)
    assert drain.kicks.sent == [("default", 0)] * 2


def test_nobody_is_recruited_for_jobs_of_later_or_for_a_full_house(
    conn: psycopg.Connection, put: Put, drain: Drain
) -> None:
    put()
    put(delay=10 * MINUTE)
    drain(batch_size=1)
    conn.execute("UPDATE pgq_core.queues SET max_workers = 1")
    put()
    put()
    drain(batch_size=1)
    assert drain.kicks.sent == []


def test_a_lease_names_its_worker(tasks: Tasks, put: Put, drain: Drain, value: Value) -> None:
    names: list[str | None] = []
    tasks.handler("a")(lambda job: names.append(job.locked_by))
    put("a")
    drain(worker_id="invocation 7")
    put("a")
    drain()
    put("a")
    drain()
    assert names[0] == "invocation 7"
    assert len(set(names)) == 3, "made up, a new one for each"
    assert value("SELECT count(locked_by) FROM pgq_core.jobs") == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": ""},
        {"queue": 7},
        {"batch_size": 0},
        {"batch_size": 1001},
        {"worker_id": "w" * 201},
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_opened(
    wrong: dict[str, object], drain: Drain
) -> None:
    [name] = wrong
    with pytest.raises((ValueError, TypeError), match=name):
        drain(**wrong)


def test_an_interrupt_from_outside_ends_the_drain_and_hands_back(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("a")(lambda _job: signal.raise_signal(signal.SIGINT))
    waiting: list[Enqueued] = [put("a"), put()]
    with pytest.raises(KeyboardInterrupt):
        drain()
    assert [look(job).status for job in waiting] == ["queued", "queued"]
    assert [look(job).attempt for job in waiting] == [1, 0]
