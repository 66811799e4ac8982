"""The table of schedules: each slot fires once, whoever fires it; nothing in it stops a queue."""

import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pgq_core import Job, Tasks, db, enqueue, queues, schedules, work
from pgq_core.errors import ConfigError
from pgq_core.schedules import NewSchedule, Schedule
from tests.conftest import Connect
from tests.worker.fakes import Alarms

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
FAR = "0 0 1 1 *"


def new(name: str = "s", cron: str = FAR, **fields: Any) -> NewSchedule:
    return NewSchedule(name=name, cron=cron, task="t", **fields)


@pytest.fixture
def put(conn: psycopg.Connection) -> Callable[..., None]:
    """Make a schedule whose slot is so many seconds from now."""

    def put(name: str = "s", seconds: float = -1, cron: str = FAR, **fields: Any) -> None:
        schedules.put(conn, new(name, cron, **fields))
        conn.execute(
            "UPDATE pgq_core.schedules SET next_at = now() + %s * interval '1 s' WHERE name = %s",
            [seconds, name],
        )

    return put


@pytest.fixture
def read(conn: psycopg.Connection) -> Callable[[str], Schedule]:
    return lambda name: next(one for one in schedules.find(conn) if one.name == name)


@pytest.fixture
def jobs(conn: psycopg.Connection) -> Callable[[], list[dict[str, Any]]]:
    """Read the jobs there are, in order."""

    def jobs() -> list[dict[str, Any]]:
        with conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute("SELECT * FROM pgq_core.jobs ORDER BY id").fetchall()

    return jobs


def test_a_due_slot_becomes_a_job_that_says_where_it_comes_from(
    conn: psycopg.Connection, put: Any, read: Any, jobs: Any
) -> None:
    put(payload={"a": 1}, queue="nightly", priority=2, max_attempts=3)
    slot = read("s").next_at
    assert schedules.fire(conn, "default") == 0
    assert schedules.fire(conn, "nightly") == 1
    [job] = jobs()
    names = ("task", "payload", "queue", "priority", "max_attempts", "status")
    assert [job[name] for name in names] == ["t", {"a": 1}, "nightly", 2, 3, "queued"]
    assert job["headers"]["schedule"] == "s"
    assert datetime.fromisoformat(job["headers"]["slot"]) == slot
    after = read("s")
    assert (after.fired_at, after.next_at > datetime.now(UTC)) == (slot, True)


def test_sch_05_a_slot_is_fired_once_when_two_workers_meet(
    conn: psycopg.Connection, connect: Connect, put: Any, jobs: Any
) -> None:
    put()
    other = connect()
    with conn.transaction():
        assert schedules.fire(conn, "default") == 1
        assert schedules.fire(other, "default") == 0  # and does not wait for the first
    assert schedules.fire(other, "default") == 0
    assert len(jobs()) == 1


def test_a_slot_whose_firing_was_rolled_back_is_fired_by_the_next(
    conn: psycopg.Connection, connect: Connect, put: Any, jobs: Any
) -> None:
    put()
    with conn.transaction(force_rollback=True):
        assert schedules.fire(conn, "default") == 1
    assert schedules.fire(connect(), "default") == 1
    assert len(jobs()) == 1


def test_lse_11_a_slot_seen_due_and_then_fired_by_somebody_else_is_not_fired_again(
    conn: psycopg.Connection,
    connect: Connect,
    put: Any,
    jobs: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put()
    others: list[int] = []
    count = schedules.next_slot

    def meanwhile(*args: Any) -> datetime:
        monkeypatch.setattr(schedules, "next_slot", count)
        others.append(schedules.fire(connect(), "default"))
        return count(*args)

    monkeypatch.setattr(schedules, "next_slot", meanwhile)
    assert (schedules.fire(conn, "default"), others) == (0, [1])
    assert len(jobs()) == 1


def test_sch_06_missed_slots_are_one_and_the_next_is_in_the_future(
    conn: psycopg.Connection, put: Any, read: Any, jobs: Any
) -> None:
    put(seconds=-3 * 86_400, cron="0 * * * *")
    missed = read("s").next_at
    assert schedules.fire(conn, "default") == 1
    assert schedules.fire(conn, "default") == 0
    [job] = jobs()
    assert datetime.fromisoformat(job["headers"]["slot"]) == missed
    assert timedelta(0) < read("s").next_at - datetime.now(UTC) <= HOUR


def test_sch_05_the_next_slot_is_counted_by_the_databases_clock(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = db.statement
    stopped = b"SELECT timestamptz '2031-05-05 05:05Z'"
    monkeypatch.setattr(db, "statement", lambda n: stopped if n == "clock" else statement(n))
    slot = schedules.put(conn, new(cron="0 6 * * *"))
    assert slot == datetime(2031, 5, 5, 6, tzinfo=UTC)
    conn.execute("UPDATE pgq_core.schedules SET next_at = '2030-01-01', paused = true")
    schedules.resume(conn, "s")
    assert schedules.find(conn)[0].next_at == slot


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "UTC"])
def test_the_sessions_time_zone_makes_no_difference(dsn: str, zone: str) -> None:
    with psycopg.connect(dsn, autocommit=True, options=f"-c TimeZone={zone}") as conn:
        slot = schedules.put(conn, new(cron="30 2 * * *", timezone="Asia/Tokyo"))
    assert (slot.astimezone(UTC).hour, slot.astimezone(UTC).minute) == (17, 30)


def test_a_paused_schedule_fires_nothing_and_goes_on_with_its_next_slot(
    conn: psycopg.Connection, put: Any, read: Any
) -> None:
    put(queue="nightly")
    assert schedules.pause(conn, "s")
    assert schedules.fire(conn, "nightly") == 0
    assert schedules.resume(conn, "s") == "nightly"
    assert read("s").next_at > datetime.now(UTC)
    assert schedules.fire(conn, "nightly") == 0


def test_a_schedule_that_is_not_there_is_said_to_be_none(conn: psycopg.Connection) -> None:
    assert not schedules.pause(conn, "s")
    assert schedules.resume(conn, "s") is None
    assert not schedules.remove(conn, "s")


def test_a_removed_schedule_fires_no_more_and_its_jobs_stay(
    conn: psycopg.Connection, put: Any, jobs: Any
) -> None:
    put()
    schedules.fire(conn, "default")
    put("other")
    assert schedules.remove(conn, "s")
    assert [one.name for one in schedules.find(conn)] == ["other"]
    assert len(jobs()) == 1


def test_a_change_keeps_a_slot_that_is_due_unless_the_times_change(
    conn: psycopg.Connection, put: Any, read: Any
) -> None:
    put(cron="0 2 * * *")
    due = read("s").next_at
    schedules.pause(conn, "s")
    schedules.put(conn, new(cron="0 2 * * *", payload={"a": 2}))
    assert (read("s").next_at, read("s").payload, read("s").paused) == (due, {"a": 2}, True)
    for changed in (
        new(cron="0 3 * * *"),
        new(cron="0 3 * * *", timezone="Asia/Tokyo"),
    ):
        before = read("s").next_at
        schedules.put(conn, changed)
        assert read("s").next_at != before
        assert read("s").next_at > datetime.now(UTC)


def test_a_sync_makes_the_codes_schedules_what_the_code_says_and_touches_no_others(
    conn: psycopg.Connection, put: Any, read: Any
) -> None:
    put("by hand")
    by_hand = read("by hand")
    assert schedules.sync(conn, [new("a", queue="x"), new("b", queue="y")]) == ["x", "y"]
    assert schedules.sync(conn, [new("b", "0 5 * * *"), new("c")]) == ["default"]
    assert [one.name for one in schedules.find(conn)] == ["b", "by hand", "c"]
    assert (read("b").cron, read("b").queue) == ("0 5 * * *", "default")
    assert schedules.sync(conn, []) == []
    assert schedules.find(conn) == [by_hand]


def test_code_and_hand_do_not_take_a_schedule_from_each_other(
    conn: psycopg.Connection, put: Any
) -> None:
    put("by hand")
    schedules.sync(conn, [new("in code")])
    before = schedules.find(conn)
    with pytest.raises(ConfigError, match="by hand"):
        schedules.sync(conn, [new("a"), new("by hand")])
    with pytest.raises(ConfigError, match="in code"):
        schedules.put(conn, new("in code", "0 5 * * *"))
    assert schedules.find(conn) == before


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def tasks(ran: list[str]) -> Tasks:
    tasks = Tasks()
    tasks.handler("t")(lambda job: ran.append(job.headers.get("schedule", "-")))
    return tasks


@pytest.fixture
def drain(dsn: str, tasks: Tasks) -> Callable[..., Alarms]:
    """Let one worker work; return the alarms it set."""

    def drain(**options: Any) -> Alarms:
        alarms = Alarms()
        work(lambda: psycopg.connect(dsn), tasks, alarm=alarms, **options)
        return alarms

    return drain


def test_a_worker_runs_what_is_due_and_arms_the_alarm_for_the_next_slot(
    put: Any, read: Any, drain: Any, ran: list[str]
) -> None:
    put()
    assert drain().armed == [read("s").next_at]
    assert ran == ["s"]


def test_a_worker_waits_in_place_for_a_slot_that_is_near(
    put: Any, drain: Any, ran: list[str]
) -> None:
    put(seconds=1)
    started = time.monotonic()
    drain(wait=timedelta(seconds=5))
    assert ran == ["s"]
    assert 0.9 < time.monotonic() - started < 3


GARBAGE = [
    ("cron", "every now and then"),
    ("cron", "0 0 30 2 *"),
    ("timezone", "Mars/Olympus"),
    ("timezone", "../../../etc/passwd"),
    ("max_attempts", "7"),
]


@pytest.fixture
def refused(conn: psycopg.Connection) -> None:
    """A rule of the house that the library does not know of."""
    conn.execute("ALTER TABLE pgq_core.jobs ADD CONSTRAINT house CHECK (max_attempts <> 7)")


@pytest.mark.usefixtures("refused")
def test_garbage_by_plain_sql_pauses_itself_and_stops_nobody(
    conn: psycopg.Connection,
    put: Any,
    drain: Any,
    ran: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number, (column, value) in enumerate(GARBAGE):
        put(f"bad {number}", seconds=-10)
        conn.execute(
            f"UPDATE pgq_core.schedules SET {column} = %s WHERE name = %s",
            [value, f"bad {number}"],
        )
    put("good")
    enqueue(conn, "t", {})
    with caplog.at_level(logging.WARNING, "pgq_core"):
        drain()
    assert sorted(ran) == ["-", "good"]
    paused = {one.name: one.paused for one in schedules.find(conn)}
    assert paused == {f"bad {n}": True for n in range(len(GARBAGE))} | {"good": False}
    logged = [record for record in caplog.records if record.message == "schedule paused"]
    assert len(logged) == len(GARBAGE)
    drain()  # and once is enough
    assert sorted(ran) == ["-", "good"]


def test_a_missing_privilege_is_seen_and_pauses_nothing(
    conn: psycopg.Connection, put: Any, read: Any, caplog: pytest.LogCaptureFixture
) -> None:
    put()
    conn.execute("CREATE ROLE clerk")
    conn.execute("GRANT USAGE ON SCHEMA pgq_core TO clerk")
    conn.execute("GRANT SELECT, UPDATE ON pgq_core.schedules TO clerk")
    try:
        conn.execute("SET ROLE clerk")
        assert schedules.fire(conn, "default") == 0
    finally:
        conn.execute("RESET ROLE; DROP OWNED BY clerk; DROP ROLE clerk")
    assert "schedule not fired" in caplog.text
    assert not read("s").paused
    assert schedules.fire(conn, "default") == 1


def test_a_worker_without_the_extra_says_so_and_pauses_nothing(
    put: Any, read: Any, drain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put()
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match=r"pgq-core\[cron\]"):
        drain()
    assert not read("s").paused


def test_a_schedule_locked_elsewhere_holds_up_nobody(
    conn: psycopg.Connection, connect: Connect, put: Any, drain: Any, ran: list[str]
) -> None:
    put("locked")
    put("free")
    enqueue(conn, "t", {})
    other = connect()
    with other.transaction():
        other.execute("SELECT FROM pgq_core.schedules WHERE name = 'locked' FOR UPDATE")
        started = time.monotonic()
        alarms = drain()
        assert time.monotonic() - started < 2
    assert sorted(ran) == ["-", "free"]
    assert len(alarms.armed) == 1
    assert alarms.armed[0] - datetime.now(UTC) < 2 * SECOND  # somebody comes again soon


def test_a_slot_that_falls_due_while_a_worker_drains_is_not_left_behind(
    conn: psycopg.Connection, put: Any, tasks: Tasks, drain: Any, ran: list[str]
) -> None:
    def slow(_: Job) -> None:
        put("meanwhile")

    tasks.handler("slow")(slow)
    enqueue(conn, "slow", {})
    drain(wait=timedelta(seconds=5))
    assert ran == ["meanwhile"]


def test_the_next_instant_of_a_queue_is_a_slot_if_that_comes_first(
    conn: psycopg.Connection, put: Any, read: Any
) -> None:
    assert queues.outlook(conn, "default") is None
    put(seconds=600)
    enqueue(conn, "t", {}, delay=HOUR)
    look = queues.outlook(conn, "default")
    assert look is not None
    assert look[0] == read("s").next_at
    assert abs(look[1].total_seconds() - 600) < 5
    schedules.pause(conn, "s")
    look = queues.outlook(conn, "default")
    assert look is not None
    assert look[1] > timedelta(minutes=50)
    schedules.resume(conn, "s")
    queues.pause(conn, "default")
    assert queues.outlook(conn, "default") is None


def test_the_sweep_sees_a_queue_that_has_nothing_but_a_due_slot(
    conn: psycopg.Connection, put: Any
) -> None:
    put("due", queue="due")
    put("later", queue="later", seconds=600)
    put("paused", queue="paused")
    schedules.pause(conn, "paused")
    put("queue paused", queue="queue paused")
    queues.pause(conn, "queue paused")
    assert queues.with_work(conn) == ["due"]


def test_a_slot_that_a_lock_holds_up_stays_due(conn: psycopg.Connection, connect: Connect) -> None:
    schedules.put(conn, schedules.NewSchedule(name="s", cron="0 0 1 1 *", task="t"))
    conn.execute("UPDATE pgq_core.schedules SET next_at = now()")
    index, hurried = connect(), connect(options="-c lock_timeout=50ms")
    with index.transaction():
        index.execute("LOCK TABLE pgq_core.jobs IN SHARE MODE")  # as CREATE INDEX does
        assert schedules.fire(hurried, "default") == 0
    assert not schedules.find(conn)[0].paused
    assert schedules.fire(hurried, "default") == 1
