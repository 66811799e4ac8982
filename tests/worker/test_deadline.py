"""Near the end of an invocation: hand back what was not started, then hand over."""

from datetime import timedelta

import psycopg
import pytest

from pgq_core import DrainReport, Job, Tasks, queues
from tests.worker.fakes import Drain, Kicks, Look, Put, TimeLeft, Value

MINUTE = timedelta(minutes=1)


@pytest.fixture
def left(tasks: Tasks) -> TimeLeft:
    """An invocation of a minute, and a task `last` after which it is nearly over."""
    left = TimeLeft(60)

    @tasks.handler("last")
    def last(_job: Job) -> None:
        left.seconds = 4.9

    return left


def running(value: Value) -> int:
    return int(value("SELECT count(*) FROM pgq_core.jobs WHERE status = 'running'"))


@pytest.mark.parametrize(
    ("seconds", "lease"),
    [
        pytest.param(60, 65, id="an invocation"),
        pytest.param(900, 905, id="the longest invocation"),
        pytest.param(3600, 300, id="no invocation"),
    ],
)
def test_lse_05_a_lease_is_what_is_left_of_the_invocation_and_a_grace(
    seconds: float, lease: float, tasks: Tasks, put: Put, drain: Drain, value: Value
) -> None:
    leases = []
    ends = "SELECT extract(epoch FROM locked_until - now())::float FROM pgq_core.jobs"
    tasks.handler("a")(lambda _job: leases.append(value(ends)))
    put("a")
    drain(time_left=TimeLeft(seconds))
    assert leases == [pytest.approx(lease, abs=2)]


def test_lam_04_what_was_not_started_is_handed_back_at_once_and_costs_no_attempt(
    put: Put, drain: Drain, look: Look, left: TimeLeft
) -> None:
    done, first, second = put("last"), put(), put()
    due = look(first).run_at
    assert drain(time_left=left) == DrainReport(claimed=3, done=1, released=2)
    assert look(done).status == "done"
    for job in (first, second):
        assert (look(job).status, look(job).attempt, look(job).max_attempts) == ("queued", 0, 5)
    assert look(first).run_at == due


def test_one_kick_hands_over_after_the_last_release(
    put: Put, drain: Drain, value: Value, left: TimeLeft
) -> None:
    held: list[int] = []

    def look_around() -> bool:
        held.append(running(value))
        return True

    kicks = Kicks(look_around)
    for task in ("last", "ok", "ok"):
        put(task)
    drain(time_left=left, kick=kicks)
    assert kicks.sent == [("default", 1)]
    assert held == [0]


def test_a_hand_over_kicks_whatever_the_mark_says(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, left: TimeLeft
) -> None:
    @tasks.handler("a")
    def a(_job: Job) -> None:
        left.seconds = 1
        conn.execute("UPDATE pgq_core.queues SET kick_requested_at = clock_timestamp()")

    put("a")
    put()
    drain(time_left=left)
    assert drain.kicks.sent == [("default", 1)]


def test_a_hand_over_arms_no_alarm(put: Put, drain: Drain, left: TimeLeft) -> None:
    put("last")
    put()
    drain(time_left=left)
    assert (len(drain.kicks.sent), drain.alarms.armed) == (1, [])


def test_a_refused_hand_over_arms_an_alarm_instead(
    put: Put, drain: Drain, left: TimeLeft, value: Value
) -> None:
    drain.kicks.answer = lambda: False
    put("last")
    put()
    drain(time_left=left)
    assert len(drain.kicks.sent) == 1
    away = drain.alarms.armed[0] - value("SELECT now()")
    assert away.total_seconds() == pytest.approx(30, abs=5)


def test_nobody_is_kicked_if_nothing_is_due(
    put: Put, drain: Drain, look: Look, left: TimeLeft
) -> None:
    put("last")
    later = put(delay=5 * MINUTE)
    assert drain(time_left=left, wait=10 * MINUTE) == DrainReport(claimed=1, done=1)
    assert drain.kicks.sent == []
    assert drain.alarms.armed == [look(later).run_at]


def test_a_paused_queue_is_not_handed_over(
    conn: psycopg.Connection,
    tasks: Tasks,
    put: Put,
    drain: Drain,
    left: TimeLeft,
) -> None:
    @tasks.handler("a")
    def a(_job: Job) -> None:
        left.seconds = 1
        queues.pause(conn, "default")

    put("a")
    put()
    drain(time_left=left)
    assert (drain.kicks.sent, drain.alarms.armed) == ([], [])


@pytest.mark.parametrize(("hop", "sent"), [(0, [("default", 1)]), (2, [("default", 3)]), (3, [])])
@pytest.mark.parametrize("seconds", [20, 4.9])
def test_workers_that_start_nothing_hand_over_three_times_in_a_row(
    *,
    seconds: float,
    hop: int,
    sent: list[tuple[str, int]],
    put: Put,
    drain: Drain,
    look: Look,
) -> None:
    """With 20 s left a job of 30 s does not fit; with 4.9 s nothing is claimed at all."""
    job = put()
    report = drain(time_left=TimeLeft(seconds), hop=hop)
    assert report.claimed == report.released
    assert drain.kicks.sent == sent
    assert len(drain.alarms.armed) == (0 if sent else 1)
    assert (look(job).status, look(job).attempt) == ("queued", 0)


def test_a_worker_that_started_something_hands_over_however_many_led_to_it(
    put: Put, drain: Drain, left: TimeLeft
) -> None:
    put("last")
    put()
    drain(time_left=left, hop=7)
    assert drain.kicks.sent == [("default", 8)]


def test_a_job_too_long_for_what_is_left_is_handed_back_and_shorter_ones_run(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("long", timeout=10 * MINUTE)(lambda _job: pytest.fail("must not be started"))
    long, short = put("long"), put()
    report = drain(time_left=TimeLeft(60))
    assert report == DrainReport(claimed=2, done=1, released=1)
    assert (look(long).status, look(long).released) == ("queued", 1)
    assert look(short).status == "done"
    assert drain.kicks.sent == [("default", 1)]


def test_a_job_is_started_only_if_its_timeout_and_the_reserve_fit(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    tasks.handler("a", timeout=timedelta(seconds=10))(lambda _job: None)
    put("a")
    assert drain(time_left=TimeLeft(14.9)) == DrainReport(claimed=1, released=1)
    assert drain(time_left=TimeLeft(15)) == DrainReport(claimed=1, done=1)


def test_what_was_handed_back_for_want_of_time_is_not_claimed_again(
    put: Put, drain: Drain, value: Value
) -> None:
    for _ in range(5):
        put()
    report = drain(time_left=TimeLeft(20), batch_size=2)
    assert report == DrainReport(claimed=2, released=2)
    assert value("SELECT sum(attempts) FROM pgq_core.jobs") == 2


@pytest.mark.parametrize("minutes", [1, 10, 50])
def test_lse_07_without_a_deadline_every_held_lease_outlasts_the_job_that_starts(
    minutes: int, tasks: Tasks, put: Put, drain: Drain, value: Value
) -> None:
    shortest = "SELECT extract(epoch FROM min(locked_until) - now())::float FROM pgq_core.jobs"
    leases: list[float] = []

    @tasks.handler("a", timeout=minutes * MINUTE)
    def a(_job: Job) -> None:
        leases.append(value(f"{shortest} WHERE status = 'running'"))

    for _ in range(3):
        put("a")
    assert drain() == DrainReport(claimed=3, done=3)
    assert min(leases) > minutes * 60 + 4


def test_lse_07_a_lease_found_lost_when_it_was_to_be_prolonged_is_not_run(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    ran: list[int] = []

    @tasks.handler("steals")
    def steals(_job: Job) -> None:
        conn.execute("UPDATE pgq_core.jobs SET status = 'cancelled' WHERE id = %s", [stolen.id])

    tasks.handler("long", timeout=10 * MINUTE)(lambda job: ran.append(job.id))
    put("steals")
    long, stolen = put("long"), put("long")
    last = put()
    assert drain() == DrainReport(claimed=4, done=3, lost=1)
    assert ran == [long.id]
    assert (look(stolen).status, look(last).status) == ("cancelled", "done")
