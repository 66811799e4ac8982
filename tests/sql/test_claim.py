"""Claim: each due job to one claimer, in order, under a lease, and no lock more than jobs taken."""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row, scalar_row

from pgq_core import enqueue, queues
from pgq_core.claim import claim, take
from pgq_core.errors import SchemaMismatch
from tests.conftest import Connect
from tests.sql.conftest import Locked
from tests.sql.rows import Rows

MINUTE = timedelta(minutes=1)
FREE = """SELECT count(*) FROM (
    SELECT FROM pgq_core.jobs WHERE status = 'queued' FOR NO KEY UPDATE SKIP LOCKED) AS free"""

# What plain SQL can store and Python cannot read.
LONG_NUMBER = '{"n": 1' + "0" * 5000 + "}"
DEEP = '{"a":' * 2500 + "1" + "}" * 2500


def ids(conn: psycopg.Connection, limit: int = 100, queue: str = "default") -> list[int]:
    return [job.id for job in claim(conn, queue, limit, MINUTE)]


def count(conn: psycopg.Connection, query: str) -> int:
    with conn.cursor(row_factory=scalar_row) as cursor:
        number = cursor.execute(query.encode()).fetchone()
    assert isinstance(number, int)
    return number


def test_a_claim_returns_the_whole_job_running_under_its_lease(
    conn: psycopg.Connection, rows: Rows
) -> None:
    given: dict[str, Any] = {"unique_key": "k", "priority": 3, "max_attempts": 7}
    new = enqueue(conn, "greet", {"name": "Zoë 🎉"}, headers={"trace": "1"}, **given)
    [job] = claim(conn, "default", 10, MINUTE, worker="invocation-1")
    row = rows.read(new.id)
    assert (job.id, job.task, job.payload) == (new.id, "greet", {"name": "Zoë 🎉"})
    assert (job.headers, job.unique_key, job.priority) == ({"trace": "1"}, "k", 3)
    assert (job.attempts, job.released, job.attempt, job.max_attempts) == (1, 0, 1, 7)
    assert (job.status, job.locked_by, job.crashed) == ("running", "invocation-1", 0)
    assert (job.run_at, job.created_at) == (row["run_at"], row["created_at"])
    assert (row["status"], row["attempts"]) == ("running", 1)
    assert (row["locked_until"], row["locked_by"]) == (job.locked_until, "invocation-1")
    assert 58 < rows.seconds_to(job, "locked_until") <= 60


def test_a_claimed_job_is_not_claimed_again(conn: psycopg.Connection, rows: Rows) -> None:
    [job_id] = rows.add()
    assert ids(conn) == [job_id]
    assert ids(conn) == []


def test_an_expired_lease_alone_does_not_make_a_job_claimable(
    conn: psycopg.Connection, rows: Rows
) -> None:
    """Only reclaim ends a lease: it is what counts the crash and applies the backoff."""
    rows.add()
    [job] = claim(conn, "default", 1, MINUTE)
    rows.expire(job)
    assert ids(conn) == []


@pytest.mark.parametrize("plan", ["", "-c enable_indexscan=off -c enable_bitmapscan=off"])
def test_the_best_priority_comes_first_then_the_longest_due_then_the_lowest_id(
    connect: Connect, rows: Rows, plan: str
) -> None:
    """Whatever index or scan the rows come from."""
    conn = connect(options=plan)
    late = rows.add(2, priority=9, at=-500)
    usual = rows.add(2, at=-10)
    longer_due = rows.add(1, at=-20)
    first = rows.add(1, priority=0)
    expected = [*first, *longer_due, *usual, *late]
    assert [ids(conn, 1)[0] for _ in range(2)] + ids(conn) == expected


def test_a_limit_cuts_the_same_order(conn: psycopg.Connection, rows: Rows) -> None:
    for priority in (9, 5, 1, 0):
        rows.add(3, priority=priority)
    assert [job.priority for job in claim(conn, "default", 5, MINUTE)] == [0, 0, 0, 1, 1]
    assert [job.priority for job in claim(conn, "default", 5, MINUTE)] == [1, 5, 5, 5, 9]
    assert [job.priority for job in claim(conn, "default", 5, MINUTE)] == [9, 9]


@pytest.mark.parametrize("priority", range(10))
def test_every_priority_is_claimed(conn: psycopg.Connection, rows: Rows, priority: int) -> None:
    job_ids = rows.add(priority=priority)
    assert ids(conn) == job_ids


def test_a_job_in_the_future_waits_whatever_its_priority(
    conn: psycopg.Connection, rows: Rows
) -> None:
    [future] = rows.add(priority=0, at=3600)
    due = rows.add(priority=9)
    assert ids(conn) == due
    rows.age(future, "run_at", 0)
    assert ids(conn) == [future]


def test_a_claim_takes_from_its_own_queue_only(conn: psycopg.Connection, rows: Rows) -> None:
    [other] = rows.add(queue="other")
    [default] = rows.add()
    assert ids(conn) == [default]
    assert ids(conn, queue="other") == [other]


def test_a_paused_queue_gives_nothing_until_it_is_resumed(
    conn: psycopg.Connection, rows: Rows
) -> None:
    job_ids = rows.add()
    queues.pause(conn, "default")
    assert ids(conn) == []
    queues.resume(conn, "default")
    assert ids(conn) == job_ids


def test_a_paused_queue_stops_no_other(conn: psycopg.Connection, rows: Rows) -> None:
    queues.pause(conn, "other")
    job_ids = rows.add()
    assert ids(conn) == job_ids


def test_a_job_without_an_attempt_left_is_not_claimed(conn: psycopg.Connection, rows: Rows) -> None:
    rows.add(attempts=5, max_attempts=5)
    [left] = rows.add(attempts=5, released=1, max_attempts=5)
    assert ids(conn) == [left]


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_a_finished_job_is_not_claimed(conn: psycopg.Connection, rows: Rows, status: str) -> None:
    rows.add(status=status)
    assert ids(conn) == []


def test_a_claim_locks_as_many_rows_as_it_takes(
    conn: psycopg.Connection, connect: Connect, rows: Rows
) -> None:
    """A sort above the locking node locks all that it sorts: a second claimer finds nothing."""
    for priority in range(10):
        rows.add(10, priority=priority)
    other = connect()
    with conn.transaction():
        assert len(claim(conn, "default", 25, MINUTE)) == 25
        assert count(other, FREE) == 75
        assert len(claim(other, "default", 75, MINUTE)) == 75


def test_a_claim_in_the_way_is_passed_by_and_not_waited_for(
    conn: psycopg.Connection, rows: Rows, locked: Locked
) -> None:
    first, second = rows.add(2)
    conn.execute("SET lock_timeout = '2s'")
    with locked(first):
        assert ids(conn) == [second]
    assert ids(conn) == [first]


def test_a_foreign_key_of_the_application_hides_no_job(
    conn: psycopg.Connection, connect: Connect, rows: Rows
) -> None:
    """Inserting a reference locks the job FOR KEY SHARE until the application commits."""
    [job_id] = rows.add()
    conn.execute("CREATE TABLE orders (job_id bigint REFERENCES pgq_core.jobs)")
    application = connect()
    with application.transaction():
        application.execute("INSERT INTO orders VALUES (%s)", [job_id])
        assert ids(conn) == [job_id]


@pytest.mark.parametrize("column", ["payload", "headers"])
@pytest.mark.parametrize("text", [LONG_NUMBER, DEEP], ids=["long number", "deep"])
def test_what_cannot_be_decoded_fails_alone_and_for_good(
    conn: psycopg.Connection, rows: Rows, column: str, text: str
) -> None:
    before = rows.add()
    [bad] = rows.add()
    rows.change(bad, **{column: text})
    after = rows.add()
    assert ids(conn) == [*before, *after]
    row = rows.read(bad)
    assert (row["status"], row["attempts"], row["settled"]) == ("failed", 1, 1)
    assert row["last_error"].startswith(f"BadPayload: {column} cannot be decoded: ")
    assert row["finished_at"] is not None


def test_take_hands_out_undecodable_jobs_with_the_problem(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(payload=LONG_NUMBER)
    [job] = take(conn, "default", 1, MINUTE)
    assert job.payload == {}
    assert "payload" in str(job.problem)
    assert rows.read(job)["status"] == "running"


def test_a_claim_works_whatever_the_connection_makes_of_rows(connect: Connect, rows: Rows) -> None:
    rows.add()
    conn = connect(row_factory=dict_row, cursor_factory=psycopg.ClientCursor)
    assert len(claim(conn, "default", 1, MINUTE)) == 1
    row: Any = conn.execute("SELECT 1 AS one").fetchone()
    assert row == {"one": 1}
    assert isinstance(conn.cursor(), psycopg.ClientCursor)


@pytest.mark.parametrize(
    "setting",
    [
        "datestyle=German",
        "intervalstyle=iso_8601",
        "timezone=Asia/Kathmandu",
        "search_path=",
        "standard_conforming_strings=off",
    ],
)
def test_ack_14_no_default_of_a_role_or_a_database_matters(
    connect: Connect, rows: Rows, setting: str
) -> None:
    """A lease whose row cannot be read is lost, and so is that of the next claim."""
    conn = connect(options=f"-c {setting}")
    new = enqueue(conn, "t", {"a": "b\\c"}, delay=timedelta(days=2, seconds=1))
    ahead = queues.outlook(conn, "default")
    assert ahead is not None
    assert timedelta(days=2) < ahead[1] <= timedelta(days=2, seconds=1)
    assert ahead[0] == rows.read(new.id)["run_at"]
    rows.age(new.id, "run_at", 90)
    [figures] = queues.stats(conn)
    assert figures.oldest is not None
    assert timedelta(seconds=90) <= figures.oldest < timedelta(seconds=99)
    [job] = claim(conn, "default", 1, MINUTE)
    assert (job.run_at, job.payload) == (rows.read(new.id)["run_at"], {"a": "b\\c"})


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"queue": ""}, ValueError, "queue: 1 to 200"),
        ({"queue": None}, TypeError, "queue: a str"),
        ({"limit": 0}, ValueError, "limit: 1 to 1000"),
        ({"limit": 1001}, ValueError, "limit: 1 to 1000"),
        ({"limit": True}, TypeError, "limit: an int"),
        ({"lease": timedelta(0)}, ValueError, "lease: more than 0 s"),
        ({"lease": timedelta(seconds=-1)}, ValueError, "lease: more than 0 s"),
        ({"worker": "x" * 201}, ValueError, "worker: 1 to 200"),
        ({"worker": "a\x00"}, ValueError, r"worker: .*U\+0000"),
    ],
)
def test_wrong_arguments_are_refused_before_any_statement(
    connect: Connect, wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    conn = connect(autocommit=False)
    arguments: dict[str, Any] = {"queue": "q", "limit": 1, "lease": MINUTE, "worker": None}
    arguments |= wrong
    with pytest.raises(error, match=message):
        claim(conn, **arguments)
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_database_without_the_schema_says_what_to_do(empty_dsn: str) -> None:
    with (
        psycopg.connect(empty_dsn, autocommit=True) as conn,
        pytest.raises(SchemaMismatch, match="pgq-core migrate"),
    ):
        claim(conn, "default", 1, MINUTE)


def test_an_asynchronous_connection_is_refused(dsn: str) -> None:
    async def attempt() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            wrong: Any = conn
            with pytest.raises(TypeError, match=r"psycopg\.Connection is expected"):
                claim(wrong, "default", 1, MINUTE)

    asyncio.run(attempt())
