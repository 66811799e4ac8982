"""Cases of the claim: whom it serves first, and what it walks past."""

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from pgq_core import Job, Kick, NoKick, Tasks, fence
from pgq_core.claim import claim
from pgq_core.reaper import reclaim
from pgq_core.worker import DEEP
from tests.conftest import Connect
from tests.sql.rows import Rows
from tests.worker.fakes import Drain, Kicks, Statements, TimeLeft

MINUTE = timedelta(minutes=1)
FAILING, GOOD, BATCH, ROUNDS = 50, 50, 10, 12
PASSED = 2_000  # jobs that are done while somebody's snapshot is open

End = Callable[[psycopg.Connection, Rows, Job], object]


def fails(conn: psycopg.Connection, _rows: Rows, job: Job) -> None:
    fence.fail(conn, job, "no", retry_in=timedelta(0))


def crashes(conn: psycopg.Connection, rows: Rows, job: Job) -> None:
    rows.expire(job)
    reclaim(conn)


@pytest.mark.parametrize("end", [fails, crashes])
def test_clm_02_what_fails_again_and_again_goes_behind_what_waits(
    conn: psycopg.Connection, rows: Rows, end: End
) -> None:
    """Both ways back into the queue move a job in the order that every claim goes by."""
    failing = rows.add(FAILING, max_attempts=1000)
    good = rows.add(GOOD)
    for _ in range(ROUNDS):
        for job in claim(conn, "default", BATCH, MINUTE):
            if job.id in failing:
                end(conn, rows, job)
            else:
                fence.complete(conn, [job])
        conn.execute("UPDATE pgq_core.jobs SET run_at = run_at - interval '1 hour'")  # time passes
    assert rows.statuses() == ["queued"] * len(failing) + ["done"] * len(good)


@pytest.mark.parametrize("suspects", [1, 2])
def test_clm_02_a_job_that_crashed_is_started_however_long_the_backlog(
    suspects: int, tasks: Tasks, rows: Rows, drain: Drain
) -> None:
    """It runs alone, and before the others."""
    left, started = TimeLeft(0), []

    @tasks.handler("suspect", timeout=timedelta(seconds=30))
    def suspect(job: Job) -> None:
        started.append(job.id)
        assert rows.statuses().count("running") == 1
        left.seconds -= 30

    @tasks.handler("slow", timeout=timedelta(seconds=10))
    def slow(_job: Job) -> None:
        left.seconds -= 10

    ids = rows.add(suspects, task="suspect", attempts=1, crashed=1)
    rows.add(100, task="slow")
    for _ in range(suspects):
        left.seconds = 118
        drain(time_left=left)
    assert sorted(started) == ids
    assert "queued" in rows.statuses()


class Entries:
    """Count the entries of the ready jobs' index that a session's statements have read."""

    def __init__(self, watch: psycopg.Connection) -> None:
        self.watch = watch
        self.before = 0

    def read_by(self, conn: psycopg.Connection) -> int:
        """Return how many *conn* has read since the last call."""
        conn.execute("SELECT pg_stat_force_next_flush()")
        count = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = %s"
        row = self.watch.execute(count, ["jobs_ready_idx"]).fetchone()
        assert row is not None
        self.before, before = row[0], self.before
        return int(row[0]) - before


@pytest.fixture
def old_snapshot(connect: Connect) -> psycopg.Connection:
    """A transaction somewhere else that has read something and does not end."""
    conn = connect(autocommit=False)
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    conn.execute("SELECT 1")
    return conn


def test_clm_05_a_claim_walks_past_what_was_done_under_an_old_snapshot_until_vacuum_has_run(
    conn: psycopg.Connection, connect: Connect, rows: Rows, old_snapshot: psycopg.Connection
) -> None:
    """The bound: each claim reads the dead entries once, and no more than there are."""
    entries = Entries(connect())

    def cost() -> int:
        rows.add(BATCH)
        entries.read_by(conn)
        assert len(fence.complete(conn, claim(conn, "default", BATCH, MINUTE))) == BATCH
        return entries.read_by(conn)

    rows.add(PASSED)
    while batch := claim(conn, "default", 500, MINUTE):
        fence.complete(conn, batch)
    assert PASSED < cost() <= PASSED + 2 * BATCH
    old_snapshot.rollback()
    conn.execute("VACUUM pgq_core.jobs")
    assert cost() <= 2 * BATCH


@pytest.mark.parametrize("kick", [NoKick(), Kicks()], ids=["no kick", "kick"])
@pytest.mark.parametrize("together", [50, PASSED])
@pytest.mark.usefixtures("old_snapshot")
def test_clm_05_a_drain_does_not_walk_again_and_again_past_what_it_has_done(
    *, kick: Kick, together: int, connect: Connect, rows: Rows, drain: Drain, statements: Statements
) -> None:
    """From one claim to the next: but for the first of them, and the last, which finds nothing."""
    entries, read, batch = Entries(connect()), [], 50
    for _ in range(PASSED // together):  # those of one transaction are due at one instant
        rows.add(together, task="ok")
    statements.before["claim"] = lambda: read.append(entries.read_by(drain.worker.opened[-1]))
    assert drain(batch_size=batch, kick=kick).done == PASSED
    assert len(read) > PASSED // batch
    assert max(read[DEEP // batch + 2 : -2]) <= 2 * batch
