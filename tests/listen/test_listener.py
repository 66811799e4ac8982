"""A worker that stays: woken by notifications and by the clock, and asleep while nothing is due."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from local.pgbouncer import pgbouncer
from local.postgres import Server
from pgq_core import Job, Retry, Tasks, claim, db, enqueue, listen, queues, schedules
from pgq_core.errors import SchemaMismatch
from pgq_core.listen import Listener, hearing, notify
from pgq_core.schedules import NewSchedule
from tests.worker.fakes import until

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
NAME = "listener under test"
SESSIONS = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{NAME}'"


class Listening:
    """A listener in a thread; *ran* tells what it ran, and when."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self.stopped = False
        self.ran: list[tuple[object, float]] = []
        self.tasks = Tasks()
        self.tasks.handler("t")(lambda job: self.ran.append((job.payload, time.monotonic())))
        self.listener = Listener(
            connect=lambda: psycopg.connect(dsn, application_name=NAME),
            tasks=self.tasks,
            queue="default",
            batch_size=10,
            time_left=lambda: timedelta(0) if self.stopped else timedelta(days=1),
            **{"fallback": timedelta.max} | options,
        )
        self.thread = threading.Thread(target=self.listener.run, daemon=True)

    def stop(self) -> None:
        self.stopped = True
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def listen_on(conn: psycopg.Connection) -> Iterator[Callable[..., Listening]]:
    """Make listeners; whatever becomes of the test, they end, and their connections with them."""
    made: list[Listening] = []

    def listen_on(dsn: str, **options: Any) -> Listening:
        made.append(Listening(dsn, **options))
        return made[-1]

    yield listen_on
    for one in made:
        if one.thread.ident:
            one.stop()
    until(lambda: not conn.execute(SESSIONS).fetchall())


@pytest.fixture
def listening(listen_on: Callable[..., Listening], dsn: str) -> Listening:
    """A listener that no job has yet come to; there is no fallback to save it."""
    return listen_on(dsn)


@pytest.fixture
def start(listening: Listening, drains: "Drains") -> Callable[[], None]:
    """Start it, and wait until it has drained for the first time and waits."""

    def start() -> None:
        drains.waits = 0
        listening.thread.start()
        until(lambda: drains.waits > 0)

    return start


class Drains:
    """How often a listener has asked for work, and has begun to wait for some."""

    def __init__(self) -> None:
        self.claims = self.waits = 0
        self.last = ""

    def note(self, name: str) -> None:
        self.claims += name == "claim"
        # The drain itself looks first, and notes what it has seen unless there is nothing.
        self.waits += name == "outlook" and self.last in ("outlook", "note_alarm")
        self.last = name


@pytest.fixture
def drains(monkeypatch: pytest.MonkeyPatch) -> Drains:
    drains, statement = Drains(), db.statement

    def noted(name: str) -> bytes:
        drains.note(name)
        return statement(name)

    monkeypatch.setattr(db, "statement", noted)
    return drains


@pytest.fixture
def told(conn: psycopg.Connection) -> None:
    """Inserts of jobs send notifications."""
    notify(conn, on=True)


def lateness(listening: Listening, since: float) -> float:
    until(lambda: bool(listening.ran))
    return listening.ran[0][1] - since


@pytest.mark.usefixtures("told")
def test_a_commit_starts_its_job_within_a_second(
    conn: psycopg.Connection, listening: Listening, start: Callable[[], None]
) -> None:
    start()
    with conn.transaction():
        enqueue(conn, "t", {"n": 1})
        time.sleep(0.3)  # nothing is heard before the commit
        assert listening.ran == []
    assert lateness(listening, time.monotonic()) < 1


@pytest.mark.usefixtures("told")
def test_a_commit_in_another_queue_wakes_nobody(
    conn: psycopg.Connection, start: Callable[[], None], drains: Drains
) -> None:
    start()
    claims = drains.claims
    enqueue(conn, "t", {}, queue="other")
    time.sleep(1)
    assert drains.claims == claims


def test_what_is_due_before_it_starts_is_run_without_a_notification(
    conn: psycopg.Connection, listening: Listening, start: Callable[[], None]
) -> None:
    enqueue(conn, "t", {})
    started = time.monotonic()
    start()
    assert lateness(listening, started) < 1


@pytest.mark.usefixtures("told")
def test_a_delayed_job_starts_on_time_though_nothing_tells_of_it(
    conn: psycopg.Connection, listening: Listening, start: Callable[[], None]
) -> None:
    start()
    enqueue(conn, "t", {}, delay=SECOND)
    assert 0.9 < lateness(listening, time.monotonic()) < 1.6


def test_a_retry_starts_on_time(
    conn: psycopg.Connection, listening: Listening, start: Callable[[], None]
) -> None:
    tries: list[float] = []

    @listening.tasks.handler("again")
    def again(job: Job) -> object:
        tries.append(time.monotonic())
        return Retry(after=SECOND) if job.attempt == 1 else None

    enqueue(conn, "again", {})
    start()
    until(lambda: len(tries) == 2)
    assert 0.9 < tries[1] - tries[0] < 1.6


def test_a_cron_slot_fires_on_time(
    conn: psycopg.Connection, listening: Listening, start: Callable[[], None]
) -> None:
    schedules.put(conn, NewSchedule(name="s", cron="0 0 1 1 *", task="t"))
    conn.execute("UPDATE pgq_core.schedules SET next_at = now() + interval '1.5 s'")
    started = time.monotonic()
    start()
    assert 1.4 < lateness(listening, started) < 2.2


def test_the_end_of_somebodys_lease_is_waited_for(
    conn: psycopg.Connection, start: Callable[[], None]
) -> None:
    enqueue(conn, "t", {})
    claim.claim(conn, "default", 1, 2 * SECOND, worker="dead")
    conn.execute("UPDATE pgq_core.jobs SET attempts = 1, released = 0")
    started = time.monotonic()
    start()
    until(lambda: conn.execute("SELECT crashed FROM pgq_core.jobs").fetchone() == (1,))
    assert time.monotonic() - started < 3


def test_an_instant_that_somebody_else_noted_is_kept_in_case_they_are_gone(
    conn: psycopg.Connection, listening: Listening, start: Callable[[], None]
) -> None:
    """Two listeners, of which the one that noted the alarm dies."""
    start()
    enqueue(conn, "t", {}, delay=3 * SECOND)
    conn.execute("UPDATE pgq_core.queues SET alarm_at = (SELECT run_at FROM pgq_core.jobs)")
    began = time.monotonic()
    notify(conn, on=True)
    enqueue(conn, "t", {"wakes": "it"})  # it drains, and finds the alarm noted already
    until(lambda: len(listening.ran) == 2)
    assert 2.5 < listening.ran[1][1] - began < 3.6


def test_the_fallback_finds_what_nobody_told_of(
    dsn: str,
    conn: psycopg.Connection,
    listen_on: Callable[..., Listening],
    drains: Drains,
) -> None:
    listening = listen_on(dsn, fallback=SECOND)
    listening.thread.start()
    until(lambda: drains.waits > 0)
    enqueue(conn, "t", {})
    assert lateness(listening, time.monotonic()) < 1.6


def test_at_rest_it_sends_nothing(start: Callable[[], None], conn: psycopg.Connection) -> None:
    start()
    time.sleep(0.3)
    last = f"SELECT max(state_change) FROM pg_stat_activity WHERE application_name = '{NAME}'"
    before = conn.execute(last).fetchone()
    time.sleep(1.5)
    assert conn.execute(last).fetchone() == before
    assert len(conn.execute(SESSIONS).fetchall()) == 1


@pytest.mark.usefixtures("told")
def test_it_listens_again_after_its_connection_was_ended_and_misses_nothing(
    conn: psycopg.Connection,
    listening: Listening,
    start: Callable[[], None],
    drains: Drains,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(listen, "PAUSE", 0.5)
    start()
    waits = drains.waits
    [ears, *_] = conn.execute(f"{SESSIONS} ORDER BY backend_start").fetchall()
    conn.execute("SELECT pg_terminate_backend(%s)", ears)
    until(lambda: "listening again" in caplog.text)
    enqueue(conn, "t", {"n": "while it was deaf"})
    until(lambda: len(listening.ran) == 1)
    until(lambda: drains.waits > waits)
    enqueue(conn, "t", {"n": "after"})
    until(lambda: len(listening.ran) == 2)


def test_a_database_that_goes_away_is_tried_again(
    conn: psycopg.Connection,
    listening: Listening,
    start: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listen, "PAUSE", 0.1)
    start()
    refusals, connect = [1, 2, 3], psycopg.connect

    def away(*args: Any, **options: Any) -> Any:
        if options.get("application_name") == NAME and refusals:
            refusals.pop()
            raise psycopg.OperationalError("away")
        return connect(*args, **options)

    monkeypatch.setattr(psycopg, "connect", away)
    enqueue(conn, "t", {})
    [ears, *_] = conn.execute(f"{SESSIONS} ORDER BY backend_start").fetchall()
    conn.execute("SELECT pg_terminate_backend(%s)", ears)
    until(lambda: len(listening.ran) == 1)
    assert not refusals


def test_a_database_that_is_not_there_to_begin_with_ends_it(dsn: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="no_such"):
        Listening(make_conninfo(dsn, dbname="no_such")).listener.run()


def test_it_ends_after_the_running_job_and_hands_back_the_rest(
    conn: psycopg.Connection, listening: Listening
) -> None:
    go = threading.Event()

    @listening.tasks.handler("slow")
    def slow(job: Job) -> None:
        listening.ran.append((job.id, 0))
        go.wait(10)

    for _ in range(3):
        enqueue(conn, "slow", {})
    listening.thread.start()
    until(lambda: len(listening.ran) == 1)
    listening.stopped = True
    time.sleep(0.1)
    go.set()
    listening.stop()
    rows = conn.execute("SELECT status, attempts, released FROM pgq_core.jobs ORDER BY id")
    assert rows.fetchall() == [("done", 1, 0), ("queued", 1, 1), ("queued", 1, 1)]


def test_it_ends_at_once_while_it_waits(listening: Listening, start: Callable[[], None]) -> None:
    start()
    began = time.monotonic()
    listening.stop()
    assert time.monotonic() - began < 1.5


def test_the_alarm_of_a_listener_that_ends_silences_nobody(
    conn: psycopg.Connection, listening: Listening, start: Callable[[], None]
) -> None:
    enqueue(conn, "t", {}, delay=10 * HOUR)
    start()
    listening.stop()
    assert conn.execute("SELECT alarm_at FROM pgq_core.queues").fetchall() == [(None,)]


def test_the_marks_of_a_former_life_are_spent_at_the_start(
    conn: psycopg.Connection, start: Callable[[], None]
) -> None:
    queues.configure(conn, "default", max_workers=5)
    conn.execute("UPDATE pgq_core.queues SET alarm_at = now() + interval '1 s'")
    start()
    row = conn.execute("SELECT alarm_at FROM pgq_core.queues").fetchone()
    assert row == (None,)


@pytest.mark.usefixtures("told")
def test_many_notifications_are_answered_by_few_drains(
    conn: psycopg.Connection, listening: Listening, drains: Drains
) -> None:
    go = threading.Event()
    listening.tasks.handler("slow")(lambda _: go.wait(10))
    enqueue(conn, "slow", {})
    listening.thread.start()
    until(lambda: drains.claims > 0)
    for _ in range(300):
        enqueue(conn, "t", {})
    go.set()
    until(lambda: len(listening.ran) == 300)
    time.sleep(1)
    assert drains.claims < 300 / 10 + 20


def test_each_insert_tells_of_each_queue_once(conn: psycopg.Connection, dsn: str) -> None:
    with closing(psycopg.connect(dsn, autocommit=True)) as ears:
        ears.execute("LISTEN pgq_core")
        insert = (
            "INSERT INTO pgq_core.jobs (task, queue) SELECT 't', 'q' || n % 2"
            " FROM generate_series(1, 100) n"
        )
        conn.execute(insert)
        assert list(ears.notifies(timeout=0.3)) == []
        notify(conn, on=True)
        notify(conn, on=True)  # twice is no error
        conn.execute(insert)
        assert {(n.channel, n.payload) for n in ears.notifies(timeout=0.3)} == {
            ("pgq_core", "q0"),
            ("pgq_core", "q1"),
        }
        notify(conn, on=False)
        notify(conn, on=False)
        conn.execute(insert)
        assert list(ears.notifies(timeout=0.3)) == []


def test_behind_a_pooler_and_without_the_trigger_it_says_so(
    server: Server,
    conn: psycopg.Connection,
    listen_on: Callable[..., Listening],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert hearing(conn) == (True, False)
    with pgbouncer(server, database=conn.info.dbname, pool_size=3) as address:
        with psycopg.connect(address, autocommit=True) as pooled:
            notify(conn, on=True)
            assert hearing(pooled) == (False, True)
            notify(conn, on=False)
        listening = listen_on(address)
        with caplog.at_level(logging.WARNING, "pgq_core"):
            enqueue(conn, "t", {})
            listening.thread.start()
            until(lambda: len(listening.ran) == 1)
            listening.stop()
    assert "a pooler is in between" in caplog.text
    assert "pgq-core notify on" in caplog.text


def test_a_schema_that_does_not_fit_ends_it(empty_dsn: str) -> None:
    with pytest.raises(SchemaMismatch, match="pgq-core migrate"):
        Listening(empty_dsn).listener.run()
