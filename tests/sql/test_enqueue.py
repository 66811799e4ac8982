"""Enqueue: a job exists if and only if the transaction it was put into has committed."""

import asyncio
import inspect
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from pgq_core import Enqueued, NewJob, enqueue, enqueue_many, jobs
from pgq_core.errors import SchemaMismatch
from tests.conftest import Connect
from tests.sql.bad_input import KEYS, NOT_FINITE, NOT_JSON, NUL, OTHERS, SURROGATES, Case
from tests.sql.rows import Rows

Refuse = Callable[[Case], None]


def status(conn: psycopg.Connection) -> TransactionStatus:
    return conn.info.transaction_status


# --- one transaction ---


def test_a_job_is_there_once_the_caller_has_committed(connect: Connect, rows: Rows) -> None:
    conn = connect(autocommit=False)
    new = enqueue(conn, "greet", {"user": 1})
    assert rows.all() == []
    assert status(conn) is TransactionStatus.INTRANS
    conn.commit()
    assert [row["id"] for row in rows.all()] == [new.id]


def test_a_job_goes_with_the_transaction_that_is_rolled_back(connect: Connect, rows: Rows) -> None:
    conn = connect(autocommit=False)
    enqueue(conn, "greet", {})
    enqueue_many(conn, [NewJob("greet", {})] * 3)
    conn.rollback()
    assert rows.all() == []


def test_a_job_goes_with_the_savepoint_that_is_rolled_back(
    conn: psycopg.Connection, rows: Rows
) -> None:
    with conn.transaction():
        kept = enqueue(conn, "kept", {})
        with conn.transaction(force_rollback=True):
            enqueue(conn, "dropped", {})
            enqueue_many(conn, [NewJob("dropped", {})])
    assert [row["id"] for row in rows.all()] == [kept.id]


def test_a_job_put_in_by_itself_is_committed_by_itself(
    conn: psycopg.Connection, rows: Rows
) -> None:
    new = enqueue(conn, "greet", {})
    assert [row["id"] for row in rows.all()] == [new.id]


# --- one job ---


def test_a_job_is_stored_as_it_was_given(conn: psycopg.Connection) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    new = enqueue(
        conn,
        "greet",
        {"user": 1},
        queue="mail",
        run_at=at,
        priority=2,
        max_attempts=9,
        unique_key="user:1",
        headers={"trace": "t"},
    )
    job = jobs.get(conn, new.id)
    assert new.inserted
    assert job is not None
    assert (job.task, job.payload, job.queue, job.run_at) == ("greet", {"user": 1}, "mail", at)
    assert (job.priority, job.max_attempts, job.unique_key) == (2, 9, "user:1")
    assert (job.headers, job.status, job.attempts, job.released) == ({"trace": "t"}, "queued", 0, 0)


def test_a_job_is_due_at_once_unless_said_otherwise(conn: psycopg.Connection, rows: Rows) -> None:
    new = enqueue(conn, "greet", {})
    [many] = enqueue_many(conn, [NewJob("greet", {})])
    for job_id in (new.id, many.id):
        row = rows.read(job_id)
        assert -5 < rows.seconds_to(job_id) <= 0
        assert (row["queue"], row["priority"], row["max_attempts"]) == ("default", 5, 5)
        assert (row["headers"], row["unique_key"]) == (b"{}", None)


@pytest.mark.parametrize(("asked", "waited"), [(0, 1), (0.5, 1), (3600, 3600)])
def test_a_delay_counts_from_now_and_is_a_second_at_least(
    conn: psycopg.Connection, rows: Rows, asked: float, waited: float
) -> None:
    delay = timedelta(seconds=asked)
    new = enqueue(conn, "greet", {}, delay=delay)
    [many] = enqueue_many(conn, [NewJob("greet", {}, delay=delay)])
    assert waited - 1 < rows.seconds_to(new.id) <= waited
    assert waited - 1 < rows.seconds_to(many.id) <= waited


def test_a_delay_counts_from_the_call_and_not_from_the_start_of_a_long_transaction(
    conn: psycopg.Connection, rows: Rows
) -> None:
    with conn.transaction():
        conn.execute("SELECT pg_sleep(0.3)")
        new = enqueue(conn, "greet", {}, delay=timedelta(seconds=1))
        [many] = enqueue_many(conn, [NewJob("greet", {}, delay=timedelta(seconds=1))])
    for job_id in (new.id, many.id):
        row = rows.read(job_id)
        assert row["run_at"] - row["created_at"] > timedelta(seconds=1.29)


def test_an_enqueue_works_whatever_the_connection_makes_of_rows(connect: Connect) -> None:
    conn = connect(row_factory=dict_row, cursor_factory=psycopg.ClientCursor)
    assert enqueue(conn, "greet", {}).inserted
    assert enqueue_many(conn, [NewJob("greet", {})])[0].inserted


# --- unique keys ---


def test_a_key_holds_one_unfinished_job(conn: psycopg.Connection, rows: Rows) -> None:
    first = enqueue(conn, "greet", {"n": 1}, unique_key="k")
    again = enqueue(conn, "greet", {"n": 2}, unique_key="k")
    assert again == Enqueued(id=first.id, inserted=False)
    assert enqueue_many(conn, [NewJob("greet", {}, unique_key="k")]) == [again]
    assert [row["payload"] for row in rows.all()] == [b'{"n": 1}']


@pytest.mark.parametrize("status", ["queued", "running"])
def test_an_unfinished_job_holds_its_key(conn: psycopg.Connection, rows: Rows, status: str) -> None:
    [held] = rows.add(unique_key="k", status=status, locked_until="2030-01-01Z")
    assert enqueue(conn, "t", {}, unique_key="k") == Enqueued(id=held, inserted=False)


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_a_finished_job_gives_its_key_free(
    conn: psycopg.Connection, rows: Rows, status: str
) -> None:
    rows.add(3, unique_key="k", status=status)
    assert enqueue(conn, "t", {}, unique_key="k").inserted


def test_a_key_counts_within_its_queue(conn: psycopg.Connection) -> None:
    assert enqueue(conn, "t", {}, unique_key="k", queue="a").inserted
    assert enqueue(conn, "t", {}, unique_key="k", queue="b").inserted


def test_a_conflict_tells_of_the_unfinished_job_of_the_very_queue(
    conn: psycopg.Connection, rows: Rows
) -> None:
    for status in ("done", "failed", "cancelled"):
        rows.add(2, unique_key="k", status=status, queue="b")
    rows.add(unique_key="k", queue="a")
    [held] = rows.add(unique_key="k", queue="b")
    rows.add(unique_key="k", queue="c")
    rows.add(2, unique_key="k", status="done", queue="b")
    expected = Enqueued(id=held, inserted=False)
    assert enqueue(conn, "t", {}, unique_key="k", queue="b") == expected
    assert enqueue_many(conn, [NewJob("t", {}, unique_key="k", queue="b")]) == [expected]


def test_jobs_without_a_key_are_never_in_conflict(conn: psycopg.Connection) -> None:
    assert enqueue(conn, "t", {}).inserted
    assert enqueue(conn, "t", {}).inserted


def test_enq_09_the_longest_queue_and_key_of_the_widest_characters_fit_the_index(
    conn: psycopg.Connection,
) -> None:
    """They do not compress: no run of one character."""
    queue = "".join(chr(0x10000 + 7 * n) for n in range(200))
    key = "".join(chr(0x20000 + 5 * n) for n in range(400))
    first = enqueue(conn, "t", {}, queue=queue, unique_key=key)
    assert enqueue(conn, "t", {}, queue=queue, unique_key=key).id == first.id


def test_a_conflict_locks_no_row(conn: psycopg.Connection, connect: Connect, rows: Rows) -> None:
    """DO UPDATE would lock the running row, and its completion would wait for this commit."""
    [held] = rows.add(unique_key="k", status="running", locked_until="2030-01-01Z")
    with conn.transaction():
        enqueue(conn, "t", {}, unique_key="k")
        enqueue_many(conn, [NewJob("t", {}, unique_key="k")] * 2)
        query = "SELECT FROM pgq_core.jobs WHERE id = %s FOR UPDATE NOWAIT"
        connect().execute(query, [held])


# --- many jobs ---


@pytest.mark.parametrize("count", [0, 1, 8192, 20_000])
def test_enq_05_many_jobs_come_back_in_the_order_given(
    conn: psycopg.Connection, rows: Rows, count: int
) -> None:
    new = enqueue_many(conn, [NewJob("t", {"n": n}) for n in range(count)])
    query = "SELECT id, (payload ->> 'n')::int FROM pgq_core.jobs ORDER BY 2"
    stored = rows.conn.execute(query).fetchall()
    assert stored == [(enqueued.id, n) for n, enqueued in enumerate(new)]
    assert all(enqueued.inserted for enqueued in new)
    assert len(new) == count


def test_no_job_is_no_statement(connect: Connect) -> None:
    conn = connect(autocommit=False)
    assert enqueue_many(conn, []) == []
    assert status(conn) is TransactionStatus.IDLE


def test_many_jobs_may_come_from_a_generator(conn: psycopg.Connection) -> None:
    assert len(enqueue_many(conn, (NewJob("t", {}) for _ in range(3)))) == 3


def test_every_job_of_many_is_stored_as_it_was_given(conn: psycopg.Connection) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    first, second = enqueue_many(
        conn,
        [
            NewJob("a", {"n": 1}, queue="x", run_at=at, priority=0, unique_key="k"),
            NewJob("b", {"n": [None, "2"]}, max_attempts=1000, priority=9, headers={"h": 1}),
        ],
    )
    a, b = jobs.get(conn, first.id), jobs.get(conn, second.id)
    assert a is not None
    assert b is not None
    assert (a.task, a.payload, a.queue, a.run_at) == ("a", {"n": 1}, "x", at)
    assert (a.priority, a.unique_key, a.max_attempts, a.headers) == (0, "k", 5, {})
    assert (b.task, b.payload, b.queue, b.priority) == ("b", {"n": [None, "2"]}, "default", 9)
    assert (b.max_attempts, b.headers, b.unique_key) == (1000, {"h": 1}, None)


@pytest.mark.parametrize("offset", [timedelta(hours=20), timedelta(microseconds=1)])
def test_an_instant_may_come_in_a_zone_that_postgresql_does_not_read(
    conn: psycopg.Connection, offset: timedelta
) -> None:
    at = datetime(2030, 1, 2, tzinfo=timezone(offset))
    new = [enqueue(conn, "t", {}, run_at=at), *enqueue_many(conn, [NewJob("t", {}, run_at=at)])]
    stored = [jobs.get(conn, one.id) for one in new]
    assert [job and job.run_at for job in stored] == [at, at]


def test_enq_06_duplicates_in_the_table_and_in_the_list_spoil_no_other_job(
    conn: psycopg.Connection, rows: Rows
) -> None:
    [held] = rows.add(unique_key="held")
    keys = ["a", "held", "twice", None, "twice", "b"]
    new = enqueue_many(conn, [NewJob("t", {}, unique_key=key) for key in keys])
    assert [enqueued.inserted for enqueued in new] == [True, False, True, True, False, True]
    assert new[1].id == held
    assert new[4].id == new[2].id
    assert len(rows.all()) == 5


def test_enq_06_a_duplicate_is_found_across_the_parts_of_a_long_list(
    conn: psycopg.Connection, rows: Rows
) -> None:
    given = [NewJob("t", {}, unique_key=f"k{n % 7000}") for n in range(14_000)]
    new = enqueue_many(conn, given)
    assert [enqueued.id for enqueued in new[:7000]] == [enqueued.id for enqueued in new[7000:]]
    assert sum(enqueued.inserted for enqueued in new) == 7000
    assert len(rows.all()) == 7000


def test_enq_05_many_jobs_by_themselves_are_there_all_or_none(
    conn: psycopg.Connection, rows: Rows
) -> None:
    """The second part of the list is refused by a constraint of the user's own."""
    conn.execute("ALTER TABLE pgq_core.jobs ADD CHECK (task <> 'no')")
    given = [NewJob("t", {})] * 7000 + [NewJob("no", {})]
    with pytest.raises(pg.CheckViolation):
        enqueue_many(conn, given)
    assert rows.all() == []
    assert status(conn) is TransactionStatus.IDLE
    assert conn.autocommit


# --- what is refused ---


@pytest.fixture
def refuse(connect: Connect) -> Refuse:
    """See that a job is refused before any statement, which leaves the transaction usable."""
    conn = connect(autocommit=False)

    def refuse(case: Case) -> None:
        arguments, error, message = case
        with pytest.raises(error, match=message):
            enqueue(conn, **arguments)
        assert status(conn) is TransactionStatus.IDLE
        conn.execute("SELECT 1")
        with pytest.raises(error, match=message):
            enqueue(conn, **arguments)
        assert status(conn) is TransactionStatus.INTRANS
        assert enqueue(conn, "good", {}).inserted

    return refuse


@pytest.mark.parametrize("case", NUL.values(), ids=NUL)
def test_enq_01_nul_is_refused_before_any_statement(case: Case, refuse: Refuse) -> None:
    refuse(case)


@pytest.mark.parametrize("case", NOT_FINITE.values(), ids=NOT_FINITE)
def test_enq_02_what_is_no_number_is_refused_before_any_statement(
    case: Case, refuse: Refuse
) -> None:
    refuse(case)


@pytest.mark.parametrize("case", SURROGATES.values(), ids=SURROGATES)
def test_enq_03_a_surrogate_is_refused_before_any_statement(case: Case, refuse: Refuse) -> None:
    refuse(case)


@pytest.mark.parametrize("case", NOT_JSON.values(), ids=NOT_JSON)
def test_enq_04_what_is_not_json_is_refused_before_any_statement(
    case: Case, refuse: Refuse
) -> None:
    refuse(case)


@pytest.mark.parametrize("case", KEYS.values(), ids=KEYS)
def test_enq_09_a_key_that_fits_no_index_is_refused_before_any_statement(
    case: Case, refuse: Refuse
) -> None:
    refuse(case)


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_bad_input_is_refused_before_any_statement_and_leaves_the_transaction_usable(
    case: Case, refuse: Refuse
) -> None:
    refuse(case)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\\u0000", id="enq_01 six characters"),
        pytest.param("😀", id="enq_03 an emoji"),
        pytest.param(json.loads('"\\ud83d\\ude00"'), id="enq_03 a pair in JSON"),
    ],
)
def test_enq_01_enq_03_what_only_looks_wrong_comes_back_unchanged(
    conn: psycopg.Connection, text: str
) -> None:
    given = {text: [text], "key": {"a": text}}
    new = enqueue(conn, "t", given, headers=given, unique_key=text)
    [many] = enqueue_many(conn, [NewJob("t", given, headers=given)])
    for job_id in (new.id, many.id):
        job = jobs.get(conn, job_id)
        assert job is not None
        assert (job.payload, job.headers) == (given, given)


def test_enq_13_a_payload_over_the_limit_is_refused_before_any_statement(connect: Connect) -> None:
    conn = connect(autocommit=False)
    big = {"a": "x" * 100}
    with pytest.raises(ValueError, match="payload: 110 bytes of JSON, at most 100"):
        enqueue(conn, "t", big, max_payload_bytes=100)
    with pytest.raises(ValueError, match="payload: 110 bytes of JSON, at most 100"):
        enqueue_many(conn, [NewJob("t", {}), NewJob("t", big)], max_payload_bytes=100)
    assert status(conn) is TransactionStatus.IDLE
    assert enqueue(conn, "t", big).inserted


def test_what_is_no_new_job_is_refused_before_any_statement(connect: Connect) -> None:
    conn = connect(autocommit=False)
    wrong: Any = [NewJob("t", {}), {"task": "t"}]
    with pytest.raises(TypeError, match="jobs: NewJob values are expected, not dict"):
        enqueue_many(conn, wrong)
    assert status(conn) is TransactionStatus.IDLE


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    # What jsonb keeps as it is: it has no negative zero, and writes a float that Python
    # writes with an exponent (1e16 and more) as an integer.
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(-1e15, 1e15, allow_nan=False).filter(bool)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=5)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(payload=OBJECTS, headers=OBJECTS)
def test_any_json_object_comes_back_unchanged(
    conn: psycopg.Connection, payload: dict[str, Any], headers: dict[str, Any]
) -> None:
    new = enqueue(conn, "t", payload, headers=headers)
    [many] = enqueue_many(conn, [NewJob("t", payload, headers=headers)])
    for job_id in (new.id, many.id):
        job = jobs.get(conn, job_id)
        assert job is not None
        assert repr(sorted_deeply(job.payload)) == repr(sorted_deeply(payload))
        assert repr(sorted_deeply(job.headers)) == repr(sorted_deeply(headers))


def sorted_deeply(value: Any) -> Any:
    """Put keys in one order: repr then tells 1 from 1.0 and True, which == does not."""
    match value:
        case dict():
            return {key: sorted_deeply(value[key]) for key in sorted(value)}
        case list():
            return [sorted_deeply(item) for item in value]
    return value


# --- connections that cannot do it ---


def test_enq_14_an_enqueue_after_an_error_in_the_transaction_gets_the_error_of_the_driver(
    connect: Connect, rows: Rows
) -> None:
    conn = connect(autocommit=False)
    with pytest.raises(pg.DivisionByZero):
        conn.execute("SELECT 1 / 0")
    with pytest.raises(pg.InFailedSqlTransaction):
        enqueue(conn, "t", {})
    with pytest.raises(pg.InFailedSqlTransaction):
        enqueue_many(conn, [NewJob("t", {})])
    conn.rollback()
    assert rows.all() == []


def test_enq_14_an_enqueue_on_a_closed_connection_gets_the_error_of_the_driver(
    connect: Connect,
) -> None:
    conn = connect()
    conn.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        enqueue(conn, "t", {})
    with pytest.raises(psycopg.OperationalError, match="closed"):
        enqueue_many(conn, [NewJob("t", {})])


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_that_a_trigger_keeps_out_is_an_error_and_no_endless_loop(
    conn: psycopg.Connection, rows: Rows, key: str | None
) -> None:
    conn.execute(
        "CREATE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER keep_out BEFORE INSERT ON pgq_core.jobs"
        " FOR EACH ROW EXECUTE FUNCTION keep_out()"
    )
    for put in (
        lambda: enqueue(conn, "greet", {}, unique_key=key),
        lambda: enqueue_many(conn, [NewJob("greet", {}, unique_key=key)]),
    ):
        with pytest.raises(pg.RaiseException, match=r"a trigger .* keeps it out"):
            put()
    assert rows.all() == []


def test_a_connection_in_pipeline_mode_is_refused(conn: psycopg.Connection, rows: Rows) -> None:
    with conn.pipeline():
        with pytest.raises(ValueError, match="pipeline mode"):
            enqueue(conn, "t", {})
        with pytest.raises(ValueError, match="pipeline mode"):
            enqueue_many(conn, [NewJob("t", {})])
    assert rows.all() == []


@pytest.mark.parametrize("autocommit", [True, False])
def test_enq_14_an_asynchronous_connection_is_refused(dsn: str, *, autocommit: bool) -> None:
    async def attempt() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit) as conn:
            wrong: Any = conn
            with pytest.raises(TypeError, match=r"psycopg\.Connection is expected"):
                enqueue(wrong, "t", {})
            with pytest.raises(TypeError):
                enqueue_many(wrong, [NewJob("t", {})])

    asyncio.run(attempt())


def test_a_database_without_the_schema_says_what_to_do(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        with pytest.raises(SchemaMismatch, match="pgq-core migrate"):
            enqueue(conn, "t", {})
        with pytest.raises(SchemaMismatch, match="pgq-core migrate"):
            enqueue_many(conn, [NewJob("t", {})])


# --- snapshots ---


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
)
@pytest.mark.parametrize(
    "put",
    [
        lambda conn: enqueue(conn, "t", {}, unique_key="k"),
        lambda conn: enqueue_many(conn, [NewJob("t", {}, unique_key="k")]),
    ],
    ids=["enqueue", "enqueue_many"],
)
def test_enq_08_a_key_that_the_snapshot_cannot_see_is_a_serialization_failure_of_the_caller(
    connect: Connect,
    rows: Rows,
    level: psycopg.IsolationLevel,
    put: Callable[[psycopg.Connection], object],
) -> None:
    """It must reach the caller's own retry loop, which has more to repeat than this."""
    conn = connect(autocommit=False)
    conn.isolation_level = level
    conn.execute("SELECT 1")
    [held] = rows.add(unique_key="k")
    with pytest.raises(pg.SerializationFailure):
        put(conn)
    conn.rollback()
    assert enqueue(conn, "t", {}, unique_key="k") == Enqueued(id=held, inserted=False)


# --- the SQL function ---


def test_the_function_has_the_names_and_defaults_of_the_python_one(
    conn: psycopg.Connection,
) -> None:
    query = "SELECT pg_get_function_arguments('pgq_core.enqueue'::regproc)"
    [arguments] = conn.execute(query).fetchone() or []
    words = [argument.split() for argument in arguments.split(", ")]
    function = {one[0]: one[-1] for one in words if one[0] != "OUT" and "DEFAULT" in one}
    python = {
        name: parameter.default
        for name, parameter in inspect.signature(enqueue).parameters.items()
        if name not in ("conn", "task", "max_payload_bytes")
    }
    assert list(function) == list(python)
    assert (python["queue"], function["queue"]) == ("default", "'default'::text")
    assert (str(python["priority"]), str(python["max_attempts"])) == ("5", "5")
    assert (function["priority"], function["max_attempts"]) == ("5", "5")


def test_the_function_needs_no_more_than_a_task(conn: psycopg.Connection, rows: Rows) -> None:
    by_python = enqueue(conn, "t", {})
    row = conn.execute("SELECT id, inserted FROM pgq_core.enqueue('t')").fetchone()
    assert row == (by_python.id + 1, True)
    instants = {"id", "run_at", "created_at"}
    mine, its = rows.read(by_python.id), rows.read(by_python.id + 1)
    assert {k: v for k, v in its.items() if k not in instants} == {
        k: v for k, v in mine.items() if k not in instants
    }


def test_the_function_takes_every_argument_by_its_python_name(
    conn: psycopg.Connection,
) -> None:
    query = """SELECT id FROM pgq_core.enqueue(
        task => 't', payload => '{"a": 1}', queue => 'q', run_at => '2030-01-01Z', priority => 1,
        max_attempts => 2, unique_key => 'k', headers => '{"h": 1}')"""
    [job_id] = conn.execute(query).fetchone() or []
    job = jobs.get(conn, job_id)
    assert job is not None
    assert (job.task, job.payload, job.queue, job.headers) == ("t", {"a": 1}, "q", {"h": 1})
    assert (job.priority, job.max_attempts, job.unique_key) == (1, 2, "k")
    assert job.run_at == datetime(2030, 1, 1, tzinfo=UTC)


def test_the_function_takes_null_for_what_python_calls_none(
    conn: psycopg.Connection, rows: Rows
) -> None:
    query = """SELECT id FROM pgq_core.enqueue(
        't', run_at => NULL, delay => NULL, unique_key => NULL, headers => NULL)"""
    [job_id] = conn.execute(query).fetchone() or []
    assert rows.read(job_id)["headers"] == b"{}"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ("'t', run_at => now(), delay => '1 s'", pg.InvalidParameterValue, "run_at or delay"),
        ("'t', delay => '-1 s'", pg.InvalidParameterValue, "delay: 0 to 3650 days"),
        ("'t', delay => '3651 days'", pg.InvalidParameterValue, "delay: 0 to 3650 days"),
        ("'t', run_at => 'infinity'", pg.CheckViolation, "jobs_instants"),
        ("'t', priority => 10", pg.CheckViolation, "jobs_priority"),
        ("'t', priority => 40000", pg.NumericValueOutOfRange, "smallint"),
        ("'t', max_attempts => 0", pg.CheckViolation, "jobs_limit"),
        ("'t', '[]'", pg.CheckViolation, "jobs_objects"),
        ("''", pg.CheckViolation, "jobs_names"),
        ("NULL", pg.NotNullViolation, "task"),
    ],
)
def test_the_function_refuses_what_python_refuses(
    conn: psycopg.Connection, arguments: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        conn.execute(f"SELECT pgq_core.enqueue({arguments})".encode())


def test_the_function_waits_a_second_at_least(conn: psycopg.Connection, rows: Rows) -> None:
    query = "SELECT id FROM pgq_core.enqueue('t', delay => '0 s')"
    [job_id] = conn.execute(query).fetchone() or []
    assert 0 < rows.seconds_to(job_id) <= 1


def test_the_function_tells_of_a_conflict(conn: psycopg.Connection, rows: Rows) -> None:
    [held] = rows.add(unique_key="k")
    row = conn.execute("SELECT id, inserted FROM pgq_core.enqueue('t', unique_key => 'k')")
    assert row.fetchone() == (held, False)


def test_a_trigger_enqueues_in_the_transaction_that_fires_it(connect: Connect, rows: Rows) -> None:
    rows.conn.execute("""
        CREATE TABLE users (id int);
        CREATE FUNCTION welcome() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pgq_core.enqueue('send_welcome', jsonb_build_object('user_id', NEW.id),
                                     unique_key => 'user:' || NEW.id);
            RETURN NEW;
        END $$;
        CREATE TRIGGER welcome AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION welcome()""")
    conn = connect(autocommit=False, options="-c search_path=public")
    conn.execute("INSERT INTO users VALUES (1)")
    conn.rollback()
    conn.execute("INSERT INTO users VALUES (2), (2)")
    conn.commit()
    assert [(row["task"], row["payload"]) for row in rows.all()] == [
        ("send_welcome", b'{"user_id": 2}')
    ]
