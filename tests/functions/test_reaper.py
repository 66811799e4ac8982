"""The reaper and the migrate function, called as Lambda calls them."""

import json

import psycopg
import pytest

from functions import _runtime as runtime
from functions import migrate, reaper
from pgq_core import enqueue
from pgq_core.migrate import migrations
from tests.functions.fakes import FakeContext, Log

EXPIRE = """update pgq_core.jobs set status = 'running', attempts = 1, locked_by = 'dead',
    locked_until = now() - interval '1 second'"""
FINISH = """update pgq_core.jobs set status = 'done', finished_at = now() - interval '8 days'
    where task = 'old'"""


def statuses(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("select status, count(*)::int from pgq_core.jobs group by 1"))


def test_every_expired_lease_is_put_back_in_batches_until_none_is_left(
    conn: psycopg.Connection, context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "_BATCH", 10)
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
    queues = [line for line in log.of_level("INFO") if line["message"] == "queue"]
    assert {line["queue"]: line["ready"] for line in queues} == {"one": 1, "two": 1}


def test_an_idle_database_sends_no_metric(
    context: FakeContext, capsys: pytest.CaptureFixture[str]
) -> None:
    reaper.handler({}, context)
    assert capsys.readouterr().out == ""


def test_migrate_brings_an_empty_database_up_to_date_once(
    empty_dsn: str, context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_dsn)
    assert migrate.handler({}, context) == [one.name for one in migrations()]
    assert migrate.handler({}, context) == []
