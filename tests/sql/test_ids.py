"""Ids: 64 bits wide, from the table's sequence to the last call that takes one."""

from datetime import timedelta

import psycopg
import pytest

from pgq_core import Context, Job, NewJob, Tasks, enqueue, enqueue_many, fence, jobs, queues, work
from pgq_core.claim import claim
from pgq_core.reaper import cleanup, reclaim
from tests.sql.rows import Rows
from tests.sql.verbs import VERBS, Verb

MINUTE = timedelta(minutes=1)
LAST = 2**31 - 1  # the last id of 32 bits
DUPLICATES = 1_000

COUNTERS = {
    *("priority", "attempts", "released", "max_attempts", "crashed", "settled"),  # of a job
    "max_workers",
    "oldest_code",
}

pytestmark = pytest.mark.usefixtures("past_32_bits")


@pytest.fixture
def past_32_bits(conn: psycopg.Connection) -> None:
    """Let every sequence of ours give out the last id of 32 bits next."""
    conn.execute(
        "SELECT setval(format('%%I.%%I', schemaname, sequencename), %s)"
        " FROM pg_sequences WHERE schemaname = 'pgq_core'",
        [LAST - 1],
    )


def test_enq_10_nothing_but_a_counter_is_less_than_64_bits_wide(conn: psycopg.Connection) -> None:
    columns = conn.execute(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = 'pgq_core' AND data_type IN ('integer', 'smallint')"
    ).fetchall()
    assert {name for (name,) in columns} == COUNTERS
    sequences = "SELECT data_type::text FROM pg_sequences WHERE schemaname = 'pgq_core'"
    assert {kind for (kind,) in conn.execute(sequences)} == {"bigint"}
    answer = "SELECT pg_typeof(new.id)::text FROM pgq_core.enqueue('t') AS new"
    assert conn.execute(answer).fetchone() == ("bigint",)


def test_enq_10_ids_go_past_32_bits(conn: psycopg.Connection) -> None:
    new = enqueue(conn, "t", {}, unique_key="k")
    many = enqueue_many(conn, [NewJob("t", {})] * 2)
    assert [new.id, *(one.id for one in many)] == [LAST, LAST + 1, LAST + 2]
    late = enqueue(conn, "t", {}, delay=MINUTE)
    assert enqueue_many(conn, [NewJob("t", {}, unique_key="k")])[0].id == new.id
    queues.request_kick(conn, "default", [late.id])


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_enq_10_every_write_takes_an_id_past_32_bits(
    conn: psycopg.Connection, rows: Rows, verb: Verb
) -> None:
    rows.add(2)
    held = claim(conn, "default", 2, MINUTE)
    for job in held:
        assert verb(conn, job)
        assert verb(conn, job)  # its reply was lost: `settled`
        assert rows.read(job)["status"] == verb.leaves
    assert [job.id for job in held] == [LAST, LAST + 1]


def test_enq_10_what_people_and_the_reaper_do_takes_an_id_past_32_bits(
    conn: psycopg.Connection, rows: Rows
) -> None:
    rows.add(2)
    [job] = claim(conn, "default", 1, MINUTE)
    wide = rows.add()[0]
    assert fence.extend_many(conn, [job], MINUTE) == {job.id}
    rows.expire(job)
    assert [back.id for back in reclaim(conn)] == [job.id]
    assert jobs.cancel(conn, wide) == "cancelled"
    assert jobs.retry(conn, wide) == "queued"
    assert jobs.cancel(conn, wide) == "cancelled"
    assert {found.id for found in jobs.find(conn)} == {LAST, LAST + 1, wide}
    rows.age(wide, "finished_at", 60)
    assert cleanup(conn, failed=timedelta(0), archive=True) == 1
    assert [row["id"] for row in rows.all("jobs_archive")] == [wide]


def test_enq_10_a_worker_runs_ids_past_32_bits(
    conn: psycopg.Connection, dsn: str, rows: Rows
) -> None:
    ran, tasks = [], Tasks()

    @tasks.handler("t")
    def note(job: Job, ctx: Context) -> None:
        with ctx.transaction():
            ran.append(job.id)

    enqueue_many(conn, [NewJob("t", {})] * 10)
    work(lambda: psycopg.connect(dsn), tasks)
    assert ran == [LAST + n for n in range(10)]
    assert set(rows.statuses()) == {"done"}


def test_enq_10_a_duplicate_costs_an_id_at_most(conn: psycopg.Connection) -> None:
    first = enqueue(conn, "t", {}, unique_key="k")
    again = [NewJob("t", {}, unique_key="k")] * (DUPLICATES - 10)
    ids = {one.id for one in enqueue_many(conn, again)}
    ids |= {enqueue(conn, "t", {}, unique_key="k").id for _ in range(10)}
    assert ids == {first.id}
    assert enqueue(conn, "t", {}).id <= first.id + DUPLICATES + 1
