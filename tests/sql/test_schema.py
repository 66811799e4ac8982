"""Schema: what plain SQL may not store either, and settings that must not get lost."""

import re
from importlib.resources import files
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from tests.sql.rows import Rows

FINISHED_OR_NOT = ["queued", "running", "done", "failed", "cancelled"]
INSTANTS = ["run_at", "created_at", "locked_until", "unknown_since", "finished_at"]

REFUSED = [
    ("jobs_status", {"status": "pending"}),
    ("jobs_status", {"status": ""}),
    ("jobs_names", {"queue": ""}),
    ("jobs_names", {"queue": "q" * 201}),
    ("jobs_names", {"task": ""}),
    ("jobs_names", {"task": "t" * 201}),
    ("jobs_key", {"unique_key": ""}),
    ("jobs_key", {"unique_key": "k" * 401}),
    ("jobs_worker", {"locked_by": "w" * 201}),
    ("jobs_objects", {"payload": "[]"}),
    ("jobs_objects", {"payload": "null"}),
    ("jobs_objects", {"payload": '"text"'}),
    ("jobs_objects", {"headers": "1"}),
    ("jobs_priority", {"priority": -1}),
    ("jobs_priority", {"priority": 10}),
    ("jobs_limit", {"max_attempts": 0}),
    ("jobs_limit", {"max_attempts": 1001}),
    ("jobs_counts", {"attempts": -1}),
    ("jobs_counts", {"released": 1}),
    ("jobs_counts", {"attempts": 1, "released": 2}),
    ("jobs_counts", {"released": -1}),
    ("jobs_counts", {"crashed": -1}),
    ("jobs_counts", {"crashed": 1}),
    ("jobs_counts", {"attempts": 1_000_000_001}),
    ("jobs_counts", {"settled": 1}),
    ("jobs_counts", {"settled": -1}),
    ("jobs_lease", {"status": "running"}),
]


@pytest.mark.parametrize(("constraint", "columns"), REFUSED, ids=str)
def test_plain_sql_is_refused_what_python_is(
    rows: Rows, constraint: str, columns: dict[str, Any]
) -> None:
    with pytest.raises(pg.CheckViolation) as caught:
        rows.add(1, **columns)
    assert caught.value.diag.constraint_name == constraint


@pytest.mark.parametrize("column", INSTANTS)
@pytest.mark.parametrize(
    "instant", ["infinity", "-infinity", "1999-12-31 23:59:59Z", "3000-01-01Z", "290000-01-01Z"]
)
def test_no_instant_of_a_job_is_infinite_or_absurd(rows: Rows, column: str, instant: str) -> None:
    """A client cannot read the first, and the second is never due."""
    [job_id] = rows.add()
    with pytest.raises(pg.CheckViolation) as caught:
        rows.change(job_id, **{column: instant})
    assert caught.value.diag.constraint_name == "jobs_instants"


@pytest.mark.parametrize("column", INSTANTS)
@pytest.mark.parametrize("instant", ["2000-01-01Z", "2999-12-31 23:59:59Z"])
def test_every_instant_between_2000_and_3000_is_allowed(
    rows: Rows, column: str, instant: str
) -> None:
    [job_id] = rows.add()
    rows.change(job_id, **{column: instant})


@pytest.mark.parametrize(
    "columns",
    [
        {"queue": "q" * 200, "task": "t" * 200, "unique_key": "k" * 400, "locked_by": "w" * 200},
        {"priority": 0, "max_attempts": 1},
        {"priority": 9, "max_attempts": 1000},
        {"attempts": 3, "released": 3, "settled": 3, "crashed": 3},
        {"locked_by": ""},
    ],
    ids=["longest", "least", "most", "counts", "nobody"],
)
def test_plain_sql_may_store_what_lies_on_the_limits(rows: Rows, columns: dict[str, Any]) -> None:
    rows.add(1, **columns)


@pytest.mark.parametrize(
    "column", ["queue", "task", "payload", "headers", "status", "priority", "run_at", "attempts"]
)
def test_no_column_that_a_job_needs_may_be_null(rows: Rows, column: str) -> None:
    [job_id] = rows.add()
    with pytest.raises(pg.NotNullViolation):
        rows.change(job_id, **{column: None})


def test_a_plain_insert_makes_a_job_like_any_other(conn: psycopg.Connection, rows: Rows) -> None:
    conn.execute("INSERT INTO pgq_core.jobs (task) VALUES ('t')")
    [row] = rows.all()
    assert (row["status"], row["queue"], row["priority"]) == ("queued", "default", 5)
    assert (row["max_attempts"], row["payload"], row["headers"]) == (5, b"{}", b"{}")
    assert row["run_at"] == row["created_at"]


def test_an_id_cannot_be_chosen_by_accident(conn: psycopg.Connection) -> None:
    with pytest.raises(pg.GeneratedAlways):
        conn.execute("INSERT INTO pgq_core.jobs (id, task) VALUES (1, 't')")


@pytest.mark.parametrize("status", FINISHED_OR_NOT)
def test_one_unfinished_job_holds_a_key(rows: Rows, status: str) -> None:
    rows.add(unique_key="k")
    if status in ("queued", "running"):
        with pytest.raises(pg.UniqueViolation):
            rows.add(unique_key="k", status=status, locked_until="2030-01-01Z")
    else:
        rows.add(2, unique_key="k", status=status)


@pytest.mark.parametrize(
    "columns",
    [{"name": ""}, {"name": "q" * 201}, {"max_workers": 0}, {"max_workers": 1001}],
    ids=str,
)
def test_the_settings_of_a_queue_are_guarded(
    conn: psycopg.Connection, columns: dict[str, Any]
) -> None:
    given = {"name": "q", "max_workers": 10, **columns}
    with pytest.raises(pg.CheckViolation):
        conn.execute(
            "INSERT INTO pgq_core.queues (name, max_workers) VALUES (%(name)s, %(max_workers)s)",
            given,
        )


def test_the_archive_has_the_columns_of_a_job_and_the_time_it_came(
    conn: psycopg.Connection,
) -> None:
    query = """SELECT attname, atttypid::regtype::text FROM pg_attribute
        WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
    jobs = conn.execute(query, ["pgq_core.jobs"]).fetchall()
    archive = conn.execute(query, ["pgq_core.jobs_archive"]).fetchall()
    assert archive == [*jobs, ("archived_at", "timestamp with time zone")]


def test_mig_10_a_table_of_such_churn_is_vacuumed_by_the_number_of_dead_rows(
    conn: psycopg.Connection,
) -> None:
    """20 % of a long history is far too late."""
    query = "SELECT reloptions FROM pg_class WHERE oid = %s::regclass"
    for table in ("pgq_core.jobs", "pgq_core.queues"):
        [options] = conn.execute(query, [table]).fetchone() or []
        settings = dict(option.split("=") for option in options)
        assert settings["autovacuum_vacuum_scale_factor"] == "0"
        assert int(settings["autovacuum_vacuum_threshold"]) <= 5000
        assert int(settings["fillfactor"]) <= 80


def test_everything_of_ours_lies_in_one_schema(conn: psycopg.Connection) -> None:
    query = """SELECT relnamespace::regnamespace::text, relname FROM pg_class
        WHERE relnamespace::regnamespace::text !~ '^(pg_|information_schema)'
        AND relkind IN ('r', 'v', 'S') ORDER BY 2"""
    assert conn.execute(query).fetchall() == [
        ("pgq_core", name)
        for name in ("jobs", "jobs_archive", "jobs_id_seq", "migrations", "queues", "schedules")
    ]


def test_every_instant_is_by_the_clock_of_the_database_or_was_given_by_the_caller() -> None:
    """A worker passes durations: its clock may be wrong, and two workers' clocks differ."""
    texts = [path.read_text() for path in (files("pgq_core") / "sql").iterdir() if path.is_file()]
    parameters = {name for text in texts for name in re.findall(r"%\((\w+)\)s", text)}
    values = {"queue", "task", "payload", "headers", "priority", "max_attempts", "unique_key"}
    claims = {
        "ids",
        "id",
        "attempts",
        "limit",
        "worker",
        "verb",
        "error",
        "status",
        "before",
        "after",
    }
    settings = {"paused", "name", "checksum", "oldest_code", "max_workers"}
    settings |= {"archive", "skipped", "cron", "timezone", "in_code", "kept"}
    durations = {"lease", "delay", "done", "failed", "patience"}
    asked_by_the_caller, read_from_the_database = {"run_at"}, {"at", "mark", "since", "slot"}
    read_from_the_database |= {"next", "next_at"}  # counted from its clock
    told_by_the_alarm = {"woken_for"}  # and therefore spent with a margin of a minute
    instants = asked_by_the_caller | read_from_the_database | told_by_the_alarm
    assert parameters - values - claims - settings - durations == instants
