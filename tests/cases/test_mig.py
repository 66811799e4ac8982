"""The schema under a running system: other versions, the application's own rules, size, churn."""

import re
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from pgq_core import DrainReport, NewJob, Tasks, enqueue, enqueue_many, fence, jobs, queues, reaper
from pgq_core.claim import claim
from tests.conftest import Connect
from tests.sql.rows import Rows
from tests.sql.test_plans import explain
from tests.worker.fakes import Drain, Put, TimeLeft

MINUTE, NOTHING = timedelta(minutes=1), timedelta(0)
HISTORY, BATCH = 20_000, 2_000  # MIG-06: finished jobs, and how many go at once
CHURN, ROUNDS = 2_000, 4  # MIG-10: jobs that pass through, and how often

# --- MIG-03: the schema of the next release ---

NEXT_RELEASE = b"""
    ALTER TABLE pgq_core.jobs ADD COLUMN tenant text NOT NULL DEFAULT 'all';
    ALTER TABLE pgq_core.jobs_archive ADD COLUMN tenant text;
    ALTER TABLE pgq_core.queues ADD COLUMN tenant text NOT NULL DEFAULT 'all';
    CREATE INDEX ON pgq_core.jobs (tenant, queue, priority, run_at) WHERE status = 'queued';
    INSERT INTO pgq_core.migrations (name, checksum, oldest_code) VALUES ('9999_tenants', '', 1)"""


def test_mig_03_a_worker_of_this_release_goes_on_with_the_schema_of_the_next(
    conn: psycopg.Connection, rows: Rows, tasks: Tasks, put: Put, drain: Drain
) -> None:
    put()
    rows.add(status="running", attempts=1, locked_until="2020-01-01Z", task="ok")
    conn.execute(NEXT_RELEASE)
    enqueue_many(conn, [NewJob("ok", {}), NewJob("fails", {})])
    tasks.handler("fails")(lambda job: job.payload["missing"])
    assert drain() == DrainReport(claimed=3, done=2, retried=1, reclaimed=1)
    assert reaper.cleanup(conn, done=NOTHING, archive=True) == 2
    assert [job.status for job in jobs.find(conn)] == ["queued", "queued"]
    assert queues.stats(conn)[0].delayed == 2


def test_mig_03_a_job_of_the_next_release_waits_and_holds_up_no_other(
    conn: psycopg.Connection, rows: Rows, put: Put, drain: Drain
) -> None:
    conn.execute(NEXT_RELEASE)
    [newer] = rows.add(task="of the next release", tenant="one")
    put()
    assert drain() == DrainReport(claimed=2, done=1, snoozed=1)
    assert (rows.read(newer)["status"], rows.read(newer)["tenant"]) == ("queued", "one")


# --- MIG-06: the first cleanup of a long history ---


def test_mig_06_the_first_cleanup_goes_in_steps_and_no_claim_reads_more_for_it(
    connect: Connect, rows: Rows
) -> None:
    rows.add(HISTORY, status="done", finished_at="2020-01-01Z")
    rows.add(20)
    keeper, worker = connect(options="-c statement_timeout=5s"), connect()
    left: list[int] = []

    def time_left() -> timedelta:
        left.append(len(rows.all()) - 20)
        plan = explain(worker, "claim", queue="default", limit=10, lease=MINUTE, worker="w")
        [locks] = [node for node in plan.nodes if node.kind == "LockRows"]
        assert (plan.scans, round(plan.rows)) == ([], 2 * 10)
        assert locks.pages <= 10 * 3 + 2 * 10 + 10
        return MINUTE if len(left) <= 4 else NOTHING

    assert reaper.cleanup(keeper, limit=BATCH, time_left=time_left) == 4 * BATCH
    assert left == [HISTORY - step * BATCH for step in range(5)]
    assert reaper.cleanup(keeper, limit=BATCH) == HISTORY - 4 * BATCH
    assert rows.statuses() == ["queued"] * 20


# --- MIG-07: every state that the schema allows ---


def test_mig_07_each_state_of_the_schema_is_kept_or_goes_in_its_time(
    conn: psycopg.Connection, rows: Rows
) -> None:
    query = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'jobs_status'"
    [rule] = conn.execute(query).fetchone() or [""]
    states = re.findall(r"'(\w+)'::text", rule)
    for status in states:
        rows.add(status=status, finished_at="2020-01-01Z", locked_until="2020-01-01Z")
    assert reaper.cleanup(conn) == len(states) - 2
    assert sorted(rows.statuses()) == ["queued", "running"]


# --- MIG-08: rules of the application's own on our table ---

RULE = """
    CREATE FUNCTION rule() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION ''the application forbids it''; END';
    CREATE TRIGGER rule AFTER UPDATE ON pgq_core.jobs FOR EACH ROW
        WHEN (NEW.id = 3 AND {when}) EXECUTE FUNCTION rule()"""


REFUSED = {
    "claim": ("NEW.status = 'running'", "queued"),
    "completion": ("NEW.status = 'done'", "running"),
    "any write": ("true", "queued"),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_mig_08_a_trigger_that_refuses_one_row_keeps_no_other(
    conn: psycopg.Connection, rows: Rows, drain: Drain, refused: str
) -> None:
    when, left = REFUSED[refused]
    rows.add(5, task="ok")
    conn.execute(RULE.format(when=when).encode())
    assert drain().done == 4
    assert rows.statuses() == ["done", "done", left, "done", "done"]
    conn.execute("DROP TRIGGER rule ON pgq_core.jobs")
    rows.change(3, status="queued")
    assert drain().done == 1


RAISED = {
    "a code of its own": "RAISE EXCEPTION ''no'' USING ERRCODE = ''MY001''",
    "no row": "PERFORM id FROM nothing",
    "an assertion": "ASSERT false",
    "a privilege": "RAISE insufficient_privilege",
}


@pytest.mark.parametrize("raised", RAISED)
def test_mig_08_whatever_the_trigger_raises(
    conn: psycopg.Connection, rows: Rows, drain: Drain, raised: str
) -> None:
    rows.add(5, task="ok")
    rule = RULE.format(when="NEW.status = 'running'")
    rule = rule.replace("RAISE EXCEPTION ''the application forbids it''", RAISED[raised])
    conn.execute(rule.encode())
    assert drain(batch_size=4).done == 4
    assert rows.statuses() == ["done", "done", "queued", "done", "done"]


def test_mig_08_a_claim_beside_a_refused_row_is_as_large_as_asked_for(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(8, task="ok")
    conn.execute(RULE.format(when="NEW.status = 'running'").encode())
    assert [job.id for job in claim(conn, "default", 5, MINUTE)] == [1, 2, 4, 5, 6]


def test_mig_08_cleanup_gets_past_many_rows_that_the_application_refers_to(
    conn: psycopg.Connection, rows: Rows
) -> None:
    ids = rows.add(40, status="done", finished_at="2020-01-01Z")
    conn.execute("CREATE TABLE orders (job bigint REFERENCES pgq_core.jobs)")
    conn.execute("INSERT INTO orders SELECT unnest(%s::bigint[])", [ids[:30]])
    assert reaper.cleanup(conn, limit=10) == 10


def test_mig_08_a_job_that_cannot_be_handed_back_keeps_no_other(
    conn: psycopg.Connection, rows: Rows, tasks: Tasks, drain: Drain
) -> None:
    left = TimeLeft(60)
    tasks.handler("last")(lambda _job: setattr(left, "seconds", 1))
    rows.add(task="last", priority=0)
    rows.add(3, task="ok")
    conn.execute(RULE.format(when="NEW.status = 'queued'").encode())
    assert drain(time_left=left) == DrainReport(claimed=4, done=1, released=2, lost=1)
    assert rows.statuses() == ["done", "queued", "running", "queued"]


def test_mig_08_an_expired_lease_that_cannot_be_put_back_keeps_no_other(
    conn: psycopg.Connection, rows: Rows, drain: Drain
) -> None:
    """Its lease is the oldest, so that every reclaim meets it first."""
    rows.add(5, status="running", attempts=1, locked_until="2020-01-01Z", task="ok")
    rows.age(3, "locked_until", 1e8)
    rows.add(5, task="ok")
    conn.execute(RULE.format(when="NEW.status = 'queued'").encode())
    assert drain() == DrainReport(claimed=5, done=5, reclaimed=4)
    assert rows.read(3)["status"] == "running"
    conn.execute("DROP TRIGGER rule ON pgq_core.jobs")
    assert [one.id for one in reaper.reclaim(conn)] == [3]


def test_mig_08_a_job_with_no_attempt_left_ends_beside_a_lease_that_cannot_be_put_back(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(3, status="running", attempts=1, locked_until="2020-01-01Z")
    [spent] = rows.add(attempts=5, max_attempts=5)
    conn.execute(RULE.format(when="NEW.status = 'queued'").encode())
    assert {one.id for one in reaper.reclaim_all(conn)} == {1, 2, spent}


@pytest.fixture
def published(conn: psycopg.Connection) -> Iterator[None]:
    """Publish the schema as it is: an update of a table without an identity would be refused."""
    conn.execute("CREATE PUBLICATION everything FOR TABLES IN SCHEMA pgq_core")
    yield
    conn.execute("DROP PUBLICATION everything")


@pytest.mark.usefixtures("published")
def test_mig_08_a_published_schema_goes_on(
    conn: psycopg.Connection, rows: Rows, put: Put, drain: Drain
) -> None:
    put()
    rows.add(status="running", attempts=1, locked_until="2020-01-01Z")
    assert drain() == DrainReport(claimed=1, done=1, reclaimed=1)
    assert reaper.cleanup(conn, done=NOTHING, archive=True) == 1
    queues.pause(conn, "default")


# --- MIG-10: churn ---


def sizes(conn: psycopg.Connection) -> dict[str, int]:
    """Return the pages of the table and of each of its indexes."""
    query = """
        SELECT relname, pg_relation_size(pg_class.oid) / 8192 FROM pg_class
        WHERE oid = 'pgq_core.jobs'::regclass
           OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'pgq_core.jobs'::regclass)"""
    return dict(conn.execute(query).fetchall())


def pass_through(conn: psycopg.Connection, count: int) -> None:
    enqueue_many(conn, [NewJob("t", {}, unique_key=f"{n}") for n in range(count)])
    while held := claim(conn, "default", 500, MINUTE):
        assert len(fence.complete(conn, held)) == len(held)
    assert reaper.cleanup(conn, done=NOTHING) == count
    conn.execute("VACUUM pgq_core.jobs")  # as autovacuum does, but now


def test_mig_10_indexes_do_not_grow_with_what_has_passed_through(conn: psycopg.Connection) -> None:
    conn.execute("ALTER TABLE pgq_core.jobs SET (autovacuum_enabled = off)")  # or it comes at will
    found = []
    for _ in range(ROUNDS):
        pass_through(conn, CHURN)
        found.append(sizes(conn))
    assert found[1:] == [found[1]] * (ROUNDS - 1)
    conn.execute("REINDEX TABLE CONCURRENTLY pgq_core.jobs")  # as the documents advise
    assert sum(sizes(conn).values()) < sum(found[0].values())
    assert enqueue(conn, "t", {}).inserted
