"""With nothing due: wait in place for what is near, arm an alarm for what is not."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgq_core import DrainReport, Job, NoAlarm, Tasks, claim, queues
from tests.worker.fakes import NAME, Alarms, Drain, Look, Put, TimeLeft, Value, until

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


class Mark:
    """The alarm noted for the queue: read by a call, or set."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn
        conn.execute("INSERT INTO pgq_core.queues (name) VALUES ('default')")

    def __call__(self) -> Any:
        row = self.conn.execute("SELECT alarm_at FROM pgq_core.queues").fetchone()
        return row[0] if row else None

    def set(self, at: datetime) -> None:
        self.conn.execute("UPDATE pgq_core.queues SET alarm_at = %s", [at])


@pytest.fixture
def mark(connect: Callable[..., psycopg.Connection]) -> Mark:
    return Mark(connect())


def test_an_empty_queue_arms_nothing(drain: Drain, mark: Mark) -> None:
    assert drain() == DrainReport()
    assert (drain.alarms.armed, mark()) == ([], None)


def test_an_alarm_is_noted_before_it_is_armed(
    put: Put, drain: Drain, look: Look, mark: Mark
) -> None:
    noted: list[datetime | None] = []

    def look_around() -> bool:
        noted.append(mark())
        return True

    alarms = Alarms(look_around)
    later, _latest = put(delay=5 * MINUTE), put(delay=6 * MINUTE)
    assert drain(alarm=alarms) == DrainReport()
    assert alarms.armed == noted == [look(later).run_at]
    assert mark() == look(later).run_at


def test_a_retry_is_what_an_alarm_is_armed_for(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("fails")(lambda job: 1 / (job.attempts - job.attempts))
    job = put("fails")
    drain()
    assert drain.alarms.armed == [look(job).run_at]


def refuse() -> bool:
    return False


def explode() -> bool:
    raise RuntimeError("no network")


@pytest.mark.parametrize("alarm", [Alarms(refuse), Alarms(explode), NoAlarm()])
def test_a_refused_alarm_keeps_producers_quiet_for_five_minutes_only(
    alarm: Any, put: Put, drain: Drain, mark: Mark, value: Value
) -> None:
    put(delay=60 * MINUTE)
    drain(alarm=alarm)
    noted = mark()
    assert noted is not None
    assert (noted - value("SELECT now()")).total_seconds() == pytest.approx(300, abs=5)


def test_a_refused_alarm_leaves_what_another_noted_meanwhile(
    put: Put, drain: Drain, mark: Mark, value: Value
) -> None:
    soon = value("SELECT now() + interval '2 minutes'")

    def meanwhile() -> bool:
        mark.set(soon)
        return False

    put(delay=60 * MINUTE)
    drain(alarm=Alarms(meanwhile))
    assert mark() == soon


@pytest.mark.parametrize(
    ("noted_in", "armed"),
    [
        pytest.param("4 minutes", False, id="earlier"),
        pytest.param("6 minutes", True, id="later"),
        pytest.param("-1 second", True, id="past"),
    ],
)
def test_an_alarm_noted_by_another_is_enough_if_it_comes_in_time(
    *,
    noted_in: str,
    armed: bool,
    put: Put,
    drain: Drain,
    mark: Mark,
    value: Value,
) -> None:
    before = value("SELECT now() + %s::interval", noted_in)
    mark.set(before)
    put(delay=5 * MINUTE)
    due = value("SELECT run_at FROM pgq_core.jobs")
    drain()
    assert drain.alarms.armed == [due] * armed
    assert mark() == (due if armed else before)


@pytest.mark.parametrize(
    ("beyond", "spent"), [(-MINUTE, True), (MINUTE, True), (61 * SECOND, False)]
)
def test_a_worker_woken_by_an_alarm_spends_the_marks_up_to_a_minute_after_it(
    *,
    beyond: timedelta,
    spent: bool,
    drain: Drain,
    mark: Mark,
    value: Value,
) -> None:
    alarm = value("SELECT now()")
    mark.set(alarm + beyond)
    drain(woken_for=alarm)
    assert (mark() is None) is spent


def test_a_kicked_worker_spends_no_alarm(drain: Drain, mark: Mark, value: Value) -> None:
    mark.set(value("SELECT now() - interval '1 hour'"))
    drain()
    assert mark() is not None


def test_an_alarm_that_fires_early_is_armed_again(
    put: Put, drain: Drain, look: Look, mark: Mark
) -> None:
    job = put(delay=5 * MINUTE)
    mark.set(look(job).run_at)
    drain(woken_for=look(job).run_at)
    assert drain.alarms.armed == [look(job).run_at]


def test_the_end_of_anothers_lease_is_what_an_alarm_is_armed_for(
    conn: psycopg.Connection, put: Put, drain: Drain, look: Look
) -> None:
    job = put()
    put(delay=20 * MINUTE)
    claim.claim(conn, "default", 1, 10 * MINUTE, worker="another")
    drain()
    assert drain.alarms.armed == [look(job).locked_until]


def test_a_due_job_that_a_lock_hides_arms_an_alarm_in_thirty_seconds(
    connect: Callable[..., psycopg.Connection],
    put: Put,
    drain: Drain,
    value: Value,
) -> None:
    put()
    other = connect(autocommit=False)
    other.execute("SELECT FROM pgq_core.jobs FOR UPDATE")
    assert drain() == DrainReport()
    away = drain.alarms.armed[0] - value("SELECT now()")
    assert away.total_seconds() == pytest.approx(30, abs=5)


def test_a_paused_queue_arms_nothing(
    conn: psycopg.Connection, put: Put, drain: Drain, mark: Mark
) -> None:
    queues.pause(conn, "default")
    put()
    put(delay=5 * MINUTE)
    assert drain(wait=10 * MINUTE) == DrainReport()
    assert (drain.alarms.armed, mark()) == ([], None)


class Naps:
    """Stand in for the worker's `time`: look around at each sleep, then sleep."""

    def __init__(self, look_around: Callable[[], None] = lambda: None) -> None:
        self.look_around = look_around
        self.slept: list[float] = []
        self.monotonic = time.monotonic

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.look_around()
        time.sleep(seconds)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> Naps:
    naps = Naps()
    monkeypatch.setattr("pgq_core.worker.time", naps)
    return naps


def test_what_falls_due_soon_is_waited_for_with_no_connection_open(
    put: Put,
    drain: Drain,
    look: Look,
    naps: Naps,
    mark: Mark,
    value: Value,
) -> None:
    sessions = "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = %s"
    noted: list[datetime | None] = []

    def look_around() -> None:
        assert drain.worker.open == 0
        until(lambda: bool(value(sessions, NAME)), 5)
        noted.append(mark())

    naps.look_around = look_around
    job = put(delay=SECOND)
    due = look(job).run_at
    assert drain(wait=5 * SECOND) == DrainReport(claimed=1, done=1)
    assert set(noted) == {due}, "noted first, so that producers of later jobs need not kick"
    assert len(drain.worker.opened) == 2
    assert (drain.alarms.armed, mark()) == ([], None)
    started = value("SELECT finished_at FROM pgq_core.jobs") - due
    assert started.total_seconds() < 2, "the server's time to close is slept as well"


def test_a_worker_waits_again_and_again_while_something_falls_due(
    tasks: Tasks, put: Put, drain: Drain, mark: Mark
) -> None:
    @tasks.handler("twice", backoff=lambda _attempt: SECOND)
    def twice(job: Job) -> None:
        if job.attempt < 2:
            raise ValueError("once more")

    put("twice", delay=SECOND)
    assert drain(wait=5 * SECOND) == DrainReport(claimed=2, done=1, retried=1)
    assert len(drain.worker.opened) == 3
    assert mark() is None


def test_a_lease_that_ends_soon_is_waited_for_and_put_back(
    conn: psycopg.Connection,
    put: Put,
    drain: Drain,
    look: Look,
) -> None:
    job = put()
    claim.claim(conn, "default", 1, SECOND, worker="crashed")
    assert drain(wait=5 * SECOND) == DrainReport(reclaimed=1)
    assert len(drain.worker.opened) == 2
    assert drain.alarms.armed == [look(job).run_at], "the backoff of 20 s is too long to wait for"


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        pytest.param(0.5, None, id="too far off"),
        pytest.param(5, 5.9, id="too little time left"),
        pytest.param(0, None, id="not at all"),
    ],
)
def test_what_cannot_be_waited_for_is_left_to_an_alarm(
    wait: float,
    seconds: float | None,
    put: Put,
    drain: Drain,
    look: Look,
    naps: Naps,
) -> None:
    job = put(delay=SECOND)
    time_left = None if seconds is None else TimeLeft(seconds)
    assert drain(wait=wait * SECOND, time_left=time_left) == DrainReport()
    assert naps.slept == []
    assert drain.alarms.armed == [look(job).run_at]


def test_a_worker_that_has_no_time_for_a_job_does_not_spend_it_waiting(
    tasks: Tasks, put: Put, drain: Drain, naps: Naps
) -> None:
    tasks.handler("long", timeout=10 * MINUTE)(lambda _job: None)
    put("long")
    report = drain(time_left=TimeLeft(60), wait=MINUTE, hop=3)
    assert report == DrainReport(claimed=1, released=1)
    assert (naps.slept, len(drain.alarms.armed)) == ([], 1)


def test_a_worker_that_is_told_to_stop_while_it_waits_stops_waiting(
    put: Put, drain: Drain, look: Look, naps: Naps
) -> None:
    left = TimeLeft(60)

    def stop() -> None:
        left.seconds = 0

    naps.look_around = stop
    job = put(delay=30 * SECOND)
    assert drain(wait=MINUTE, time_left=left) == DrainReport()
    assert sum(naps.slept) < 1
    assert drain.alarms.armed == [look(job).run_at]


def test_an_expired_lease_that_a_lock_hides_is_not_waited_for_in_a_spin(
    conn: psycopg.Connection,
    connect: Callable[..., psycopg.Connection],
    put: Put,
    drain: Drain,
    naps: Naps,
) -> None:
    def twice_at_most() -> None:
        assert len(naps.slept) < 2

    naps.look_around = twice_at_most
    put()
    claim.claim(conn, "default", 1, SECOND, worker="crashed")
    conn.execute("UPDATE pgq_core.jobs SET locked_until = now() - interval '1 minute'")
    other = connect(autocommit=False)
    other.execute("SELECT FROM pgq_core.jobs FOR UPDATE")
    assert drain() == DrainReport()
    assert len(drain.alarms.armed) == 1


def test_an_alarm_of_a_clock_that_is_behind_is_spent_all_the_same(
    put: Put, drain: Drain, mark: Mark, look: Look, value: Value
) -> None:
    """It goes off a moment too early, and its event tells an instant that is long past here."""
    job = put(delay=timedelta(seconds=50))
    drain(wait=timedelta(0))
    drain(wait=timedelta(0), woken_for=value("SELECT now() - interval '5 min'"))
    assert (len(drain.alarms.armed), mark()) == (2, look(job).run_at)
