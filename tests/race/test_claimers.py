"""Many claimers: each job goes to one of them, whoever else is at work."""

from collections import Counter
from datetime import timedelta

import psycopg
import pytest

from pgq_core import fence, jobs
from pgq_core.claim import claim
from pgq_core.reaper import cleanup, reclaim
from tests.conftest import Connect
from tests.race.conftest import AtOnce
from tests.sql.conftest import Background
from tests.sql.rows import Rows

MINUTE = timedelta(minutes=1)


def drain(conn: psycopg.Connection) -> list[int]:
    """Claim until nothing is left."""
    ids: list[int] = []
    while batch := claim(conn, "default", 7, MINUTE):
        ids += [job.id for job in batch]
    return ids


def test_each_job_goes_to_exactly_one_of_many_claimers(
    rows: Rows, at_once: AtOnce, isolation: str
) -> None:
    for priority in (1, 5, 9):
        rows.add(150, priority=priority)
    claimed = at_once(*[drain] * 32, options=isolation)
    times = Counter(job_id for ids in claimed for job_id in ids)
    assert set(times.values()) == {1}
    assert {row["attempts"] for row in rows.all()} == {1}
    assert set(rows.statuses()) == {"running"}


def test_what_one_claimer_has_not_committed_another_passes_by(
    conn: psycopg.Connection, connect: Connect, rows: Rows
) -> None:
    ids = rows.add(6)
    other = connect()
    conn.execute("SET lock_timeout = '2s'")
    with other.transaction(force_rollback=True):
        assert [job.id for job in claim(other, "default", 4, MINUTE)] == ids[:4]
        assert [job.id for job in claim(conn, "default", 9, MINUTE)] == ids[4:]
    assert [job.id for job in claim(conn, "default", 9, MINUTE)] == ids[:4]


def test_ack_11_a_job_that_is_being_cancelled_is_not_claimed(
    conn: psycopg.Connection, connect: Connect, rows: Rows
) -> None:
    [job_id] = rows.add()
    person = connect()
    with person.transaction():
        assert jobs.cancel(person, job_id) == "cancelled"
        assert claim(conn, "default", 1, MINUTE) == []
    assert claim(conn, "default", 1, MINUTE) == []
    assert rows.statuses() == ["cancelled"]


def test_ack_11_a_cancel_that_waits_for_a_claim_stops_the_run_that_it_began(
    conn: psycopg.Connection, connect: Connect, rows: Rows, blocked: Background, isolation: str
) -> None:
    [job_id] = rows.add()
    with conn.transaction():
        [job] = claim(conn, "default", 1, MINUTE)
        cancelled = blocked(jobs.cancel, connect(options=isolation), job_id)
    assert cancelled.result(timeout=10) == "cancelled"
    assert fence.complete(conn, [job]) == set()


def test_a_reclaim_and_a_completion_of_one_job_do_not_both_win(
    conn: psycopg.Connection, connect: Connect, rows: Rows
) -> None:
    rows.add()
    [job] = claim(conn, "default", 1, MINUTE)
    rows.expire(job)
    reaper = connect()
    with reaper.transaction():
        assert [back.id for back in reclaim(reaper)] == [job.id]
        assert fence.complete(conn, [job]) == set()
    assert fence.complete(conn, [job]) == set()
    assert rows.statuses() == ["queued"]


def test_lse_11_each_expired_lease_is_reclaimed_by_one_of_many_reapers(
    rows: Rows, at_once: AtOnce, isolation: str
) -> None:
    ids = rows.add(400, status="running", attempts=1, locked_until="2020-01-01Z")

    def reap(conn: psycopg.Connection) -> list[int]:
        back: list[int] = []
        while some := reclaim(conn, limit=23):
            back += [one.id for one in some]
        return back

    reclaimed = [job_id for back in at_once(*[reap] * 3, options=isolation) for job_id in back]
    assert sorted(reclaimed) == ids
    assert {(row["status"], row["crashed"]) for row in rows.all()} == {("queued", 1)}


@pytest.mark.parametrize("archive", [False, True])
def test_each_finished_job_goes_by_one_of_many_cleanups(
    rows: Rows, at_once: AtOnce, isolation: str, *, archive: bool
) -> None:
    ids = rows.add(500, status="done", finished_at="2020-01-01Z")

    def clean(conn: psycopg.Connection) -> int:
        return sum(cleanup(conn, archive=archive, limit=40) for _ in range(5))

    assert sum(at_once(*[clean] * 3, options=isolation)) == 500
    assert rows.all() == []
    assert [row["id"] for row in rows.all("jobs_archive")] == (ids if archive else [])


def test_a_reaper_that_is_killed_leaves_its_work_to_the_next(
    conn: psycopg.Connection, connect: Connect, rows: Rows
) -> None:
    ids = rows.add(50, status="running", attempts=1, locked_until="2020-01-01Z")
    victim = connect(autocommit=False)
    assert len(reclaim(victim, limit=30)) == 30
    conn.execute("SELECT pg_terminate_backend(%s, 10000)", [victim.info.backend_pid])
    victim.close()
    assert [back.id for back in reclaim(conn)] == ids
    assert {row["crashed"] for row in rows.all()} == {1}
