"""The migrate function, called as Lambda calls it."""

from datetime import timedelta

import psycopg
import pytest

from functions import _runtime as runtime
from functions import migrate
from pgq_core import Tasks, schedules
from pgq_core.errors import ConfigError
from pgq_core.migrate import migrations
from tests.functions.fakes import FakeContext, Kicks, Log


def names(conn: psycopg.Connection) -> list[str]:
    return [one.name for one in schedules.find(conn)]


def test_migrate_brings_an_empty_database_up_to_date_once(
    empty_dsn: str, context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_dsn)
    assert migrate.handler({}, context) == [one.name for one in migrations()]
    assert migrate.handler({}, context) == []


@pytest.fixture
def scheduled(tasks: Tasks) -> Tasks:
    """Two tasks with a schedule."""
    tasks.cron("0 2 * * *")(tasks.handler("report", queue="nightly")(lambda _: None))
    tasks.cron("0 3 * * *")(tasks.handler("other")(lambda _: None))
    return tasks


def test_it_writes_the_schedules_of_the_code_and_wakes_a_worker_for_each_of_their_queues(
    conn: psycopg.Connection, context: FakeContext, scheduled: Tasks, kicks: Kicks
) -> None:
    by_hand = schedules.NewSchedule(name="by hand", cron="0 4 * * *", task="t", queue="other")
    schedules.put(conn, by_hand)
    migrate.handler({}, context)
    assert names(conn) == ["by hand", "other", "report"]
    assert kicks.sent == [("default", 0), ("nightly", 0)]
    scheduled.schedules.clear()  # the next deploy
    migrate.handler({}, context)
    assert names(conn) == ["by hand"]


@pytest.mark.usefixtures("scheduled")
def test_with_wake_ups_off_the_schedules_are_written_and_nobody_is_kicked(
    conn: psycopg.Connection, context: FakeContext
) -> None:
    migrate.handler({}, context)
    assert names(conn) == ["other", "report"]
    marks = "select kick_requested_at from pgq_core.queues where kick_requested_at is not null"
    assert conn.execute(marks).fetchall() == []


@pytest.mark.usefixtures("scheduled")
def test_a_name_that_was_given_by_hand_is_one_line_and_changes_nothing(
    conn: psycopg.Connection, context: FakeContext, log: Log
) -> None:
    by_hand = schedules.NewSchedule(name="report", cron="0 4 * * *", task="t")
    schedules.put(conn, by_hand)
    with pytest.raises(ConfigError, match="report"):
        migrate.handler({}, context)
    assert names(conn) == ["report"]
    assert len(log.of_level("ERROR")) == 1


def test_lse_05_a_task_that_fits_no_invocation_is_refused_when_all_else_is_done(
    conn: psycopg.Connection, context: FakeContext, scheduled: Tasks, kicks: Kicks, log: Log
) -> None:
    scheduled.handler("long", timeout=timedelta(hours=1))(lambda _: None)
    with pytest.raises(ConfigError, match=r"jobs of long: .* 113 s; raise WorkerTimeout"):
        migrate.handler({}, context)
    assert (names(conn), len(kicks.sent)) == (["other", "report"], 2)
    assert len(log.of_level("ERROR")) == 1


def test_the_schema_is_migrated_even_if_the_handlers_cannot_be_loaded(
    empty_dsn: str, context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_dsn)
    monkeypatch.setenv("PGQ_TASKS", "no_such_module:tasks")
    runtime.settings.cache_clear()
    with pytest.raises(ConfigError, match="no_such_module"):
        migrate.handler({}, context)
    with psycopg.connect(empty_dsn) as conn:
        assert names(conn) == []
