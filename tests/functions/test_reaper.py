"""The reaper, called as Lambda calls it."""

import json
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from functions import _runtime as runtime
from functions import reaper
from pgq_core import enqueue, queues, schedules
from pgq_core import reaper as batches
from tests.functions.fakes import Alarms, FakeContext, Log

EXPIRE = """update pgq_core.jobs set status = 'running', attempts = 1, locked_by = 'dead',
    locked_until = now() - interval '1 second'"""
FINISH = """update pgq_core.jobs set status = 'done', finished_at = now() - interval '8 days'
    where task = 'old'"""


def statuses(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("select status, count(*)::int from pgq_core.jobs group by 1"))


def test_every_expired_lease_is_put_back_in_batches_until_none_is_left(
    conn: psycopg.Connection, context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_BATCH", 10)
    for queue in ("a", "b"):
        for _ in range(15):
            enqueue(conn, "any", {}, queue=queue)
    conn.execute(EXPIRE)
    assert reaper.handler({}, context) == {"reclaimed": 30, "removed": 0}
    assert statuses(conn) == {"queued": 30}


@pytest.mark.parametrize(("archive", "archived"), [("false", 0), ("true", 1)])
def test_what_was_kept_long_enough_is_deleted_or_archived(
    conn: psycopg.Connection,
    context: FakeContext,
    monkeypatch: pytest.MonkeyPatch,
    archive: str,
    archived: int,
) -> None:
    monkeypatch.setenv("PGQ_ARCHIVE", archive)
    enqueue(conn, "old", {})
    enqueue(conn, "new", {})
    conn.execute(FINISH)
    assert reaper.handler({}, context) == {"reclaimed": 0, "removed": 1}
    assert statuses(conn) == {"queued": 1}
    assert conn.execute("select count(*) from pgq_core.jobs_archive").fetchone() == (archived,)


def test_the_settings_say_how_long_is_long_enough(
    conn: psycopg.Connection, context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQ_KEEP_DONE", "9")
    enqueue(conn, "old", {})
    conn.execute(FINISH)
    assert reaper.handler({}, context) == {"reclaimed": 0, "removed": 0}


def test_the_figures_are_totals_without_a_users_word_in_them(
    conn: psycopg.Connection,
    context: FakeContext,
    log: Log,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime.metrics.provider, "service", "my-stack")
    for queue in ("one", "two"):
        enqueue(conn, "any", {}, queue=queue)
    conn.execute("update pgq_core.jobs set run_at = now() - interval '1 hour' where queue = 'two'")
    reaper.handler({"id": "what the scheduler sends"}, context)
    figures = json.loads(capsys.readouterr().out)
    assert figures["jobs_ready"] == [2]
    assert 3600 <= figures["oldest_due"][0] < 3660
    [directive] = figures["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["service"]]
    assert {"Name": "oldest_due", "Unit": "Seconds"} in directive["Metrics"]
    lines = [line for line in log.of_level("INFO") if line["message"] == "queue"]
    assert {line["queue"]: line["ready"] for line in lines} == {"one": 1, "two": 1}


def test_what_waits_in_a_paused_queue_is_not_overdue(
    conn: psycopg.Connection, context: FakeContext, capsys: pytest.CaptureFixture[str]
) -> None:
    enqueue(conn, "any", {})
    conn.execute("update pgq_core.jobs set run_at = now() - interval '3 hours'")
    queues.pause(conn, "default")
    reaper.handler({}, context)
    figures = json.loads(capsys.readouterr().out)
    assert (figures["jobs_ready"], figures.get("oldest_due")) == ([1], None)


def test_an_idle_database_sends_no_metric(
    context: FakeContext, capsys: pytest.CaptureFixture[str]
) -> None:
    reaper.handler({}, context)
    assert capsys.readouterr().out == ""


def marks(conn: psycopg.Connection) -> dict[str, datetime | None]:
    return dict(conn.execute("select name, alarm_at from pgq_core.queues").fetchall())


def value(conn: psycopg.Connection, query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_it_arms_an_alarm_for_each_queue_that_needs_somebody_later(
    conn: psycopg.Connection, context: FakeContext, alarms: Alarms
) -> None:
    for queue in ("delayed", "cron"):  # the worker made their rows when it was kicked
        queues.configure(conn, queue, max_workers=1)
    enqueue(conn, "any", {}, queue="delayed", delay=timedelta(hours=2))
    slot = schedules.put(
        conn, schedules.NewSchedule(name="s", cron="0 0 1 1 *", task="any", queue="cron")
    )
    run_at = value(conn, "select run_at from pgq_core.jobs")
    reaper.handler({}, context)
    assert sorted(alarms.set) == [("cron", slot), ("delayed", run_at)]
    assert marks(conn) == {"cron": slot, "delayed": run_at}
    reaper.handler({}, context)
    assert len(alarms.set) == 2  # they are noted


def test_an_alarm_is_no_later_for_the_calls_before_it(
    conn: psycopg.Connection,
    context: FakeContext,
    alarms: Alarms,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arm, asked = alarms.arm, []

    def slowly(queue: str, at: datetime) -> bool:
        asked.append(at)
        context.ends -= 7  # s that the call took
        return arm(queue, at)

    monkeypatch.setattr(alarms, "arm", slowly)
    for queue in ("a", "b", "c"):
        enqueue(conn, "any", {}, queue=queue, delay=timedelta(hours=2))
    reaper.handler({}, context)
    between = [(before - after).total_seconds() for before, after in pairwise(asked)]
    assert between == [pytest.approx(7, abs=1)] * 2


def test_a_queue_that_no_worker_has_seen_yet_has_its_alarm_too(
    conn: psycopg.Connection, context: FakeContext, alarms: Alarms
) -> None:
    """A job enqueued, or a schedule made, by somebody who kicks nobody."""
    enqueue(conn, "any", {}, queue="delayed", delay=timedelta(hours=2))
    schedules.put(conn, schedules.NewSchedule(name="s", cron="0 0 1 1 *", task="a", queue="cron"))
    reaper.handler({}, context)
    assert sorted(queue for queue, _ in alarms.set) == ["cron", "delayed"]


def test_an_alarm_that_was_lost_is_armed_anew_for_what_it_should_have_woken(
    conn: psycopg.Connection, context: FakeContext, alarms: Alarms
) -> None:
    queues.configure(conn, "default", max_workers=1)
    enqueue(conn, "any", {})
    conn.execute(EXPIRE)
    conn.execute("update pgq_core.queues set alarm_at = now() - interval '10 min'")
    reaper.handler({}, context)
    retry = value(conn, "select run_at from pgq_core.jobs where status = 'queued'")
    assert alarms.set == [("default", retry)]


def test_a_refused_alarm_is_said_in_the_mark(
    conn: psycopg.Connection, context: FakeContext, alarms: Alarms
) -> None:
    queues.configure(conn, "default", max_workers=1)
    alarms.accept = False
    enqueue(conn, "any", {}, delay=timedelta(hours=2))
    reaper.handler({}, context)
    ahead = value(conn, "select alarm_at - now() from pgq_core.queues")
    assert timedelta(minutes=4) < ahead <= timedelta(minutes=5)


def test_with_wake_ups_off_or_the_time_nearly_up_nothing_is_noted_or_armed(
    conn: psycopg.Connection,
    context: FakeContext,
    alarms: Alarms,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues.configure(conn, "default", max_workers=1)
    enqueue(conn, "any", {}, delay=timedelta(hours=2))
    reaper.handler({}, FakeContext(seconds=9))
    monkeypatch.setenv("PGQ_WAKEUPS", "false")
    runtime.settings.cache_clear()
    reaper.handler({}, context)
    assert (alarms.set, marks(conn)) == ([], {"default": None})
