"""Plans: at 100,000 jobs each statement reads about as many rows as it returns, by its index.

Rows and plans are asserted, not milliseconds. Each statement is explained with its parameters as
the library sends them, run, and rolled back.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import scalar_row

from local.postgres import Server
from pgq_core.db import statement

LEASE = timedelta(minutes=1)
DAY = timedelta(days=1)
KEEP: dict[str, Any] = {"failed": 30 * DAY, "skipped": 0}

LOAD = """
    INSERT INTO pgq_core.jobs (task, queue, status, priority, run_at, attempts, finished_at,
                               locked_until, locked_by)
    SELECT 't', %(queue)s, %(status)s, coalesce(%(priority)s, n %% 10),
           now() + %(at)s * interval '1 s' - n * interval '1 ms', %(attempts)s,
           now() - %(finished)s * interval '1 day' - n * interval '1 ms',
           now() + %(lease)s * interval '1 s', 'w' || n %% 7
    FROM generate_series(1, %(count)s) AS n"""


def load(conn: psycopg.Connection, status: str, count: int, **columns: float | str) -> None:
    """Insert *count* jobs: `at` and `lease` are seconds from now, `finished` days ago."""
    given: dict[str, Any] = dict.fromkeys(("finished", "lease", "priority"))
    given |= {"queue": "default", "at": 0, "attempts": 0, **columns}
    conn.execute(LOAD.encode(), {**given, "status": status, "count": count})


@dataclass
class Node:
    """A node of a plan, with those above it in the same part of the plan."""

    plan: dict[str, Any]
    above: list[str]

    @property
    def kind(self) -> str:
        return str(self.plan["Node Type"])

    @property
    def rows(self) -> float:
        """Rows that it read: returned, or thrown away by a filter or a recheck."""
        names = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
        return float(sum(self.plan.get(name, 0) for name in names) * self.plan["Actual Loops"])

    @property
    def pages(self) -> int:
        """Pages that it and what is below it touched: an index that fits badly shows here only."""
        return int(self.plan["Shared Hit Blocks"] + self.plan["Shared Read Blocks"])


class Plan:
    """What EXPLAIN says of a statement that has run."""

    def __init__(self, text: dict[str, Any]) -> None:
        self.nodes = list(walk(text["Plan"], []))

    @property
    def jobs(self) -> list[Node]:
        """The nodes that read the table of jobs."""
        of_jobs = [n for n in self.nodes if n.plan.get("Relation Name") == "jobs"]
        return [n for n in of_jobs if n.kind != "ModifyTable"]

    @property
    def indexes(self) -> set[str]:
        names = {str(n.plan["Index Name"]) for n in self.nodes if "Index Name" in n.plan}
        return {name for name in names if name.startswith("jobs_")}

    @property
    def scans(self) -> list[str]:
        """Scans of the whole table."""
        return [n.kind for n in self.jobs if n.kind in ("Seq Scan", "Sample Scan")]

    @property
    def rows(self) -> float:
        """Rows read from jobs."""
        return sum(n.rows for n in self.jobs)

    @property
    def sorts_above_a_lock(self) -> list[str]:
        locks = [n for n in self.nodes if n.kind == "LockRows"]
        assert locks
        return [kind for n in locks for kind in n.above if "Sort" in kind]


def walk(plan: dict[str, Any], above: list[str]) -> Iterator[Node]:
    node = Node(plan, above)
    yield node
    for child in plan.get("Plans", []):
        apart = child.get("Parent Relationship") in ("InitPlan", "SubPlan")
        yield from walk(child, [] if apart else [*above, node.kind])


def explain(conn: psycopg.Connection, name: str, /, **params: object) -> Plan:
    """Run a statement of the library, roll it back, and return its plan."""
    query = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement(name)
    params = {"skipped": 0, "since": None, "after": None, **params}
    with conn.transaction(force_rollback=True), conn.cursor(row_factory=scalar_row) as cursor:
        answer = cursor.execute(query, params, prepare=False).fetchone()
    [text] = json.loads(answer) if isinstance(answer, str) else answer or []
    return Plan(text)


def fenced(conn: psycopg.Connection, count: int, **params: object) -> dict[str, object]:
    """Return the parameters of a write under the fence for *count* running jobs."""
    query = "SELECT id FROM pgq_core.jobs WHERE status = 'running' ORDER BY random() LIMIT %s"
    ids = [job_id for (job_id,) in conn.execute(query, [count]).fetchall()]
    return {"ids": ids, "attempts": [1] * len(ids), **params}


@pytest.fixture(scope="module")
def databases(server: Server, template: str) -> Iterator[Any]:
    """Make databases that last as long as this module."""
    with ExitStack() as made:

        def database(name: str) -> psycopg.Connection:
            server.create(name, template)
            made.callback(server.drop, name)
            conn = made.enter_context(psycopg.connect(server.dsn(name), autocommit=True))
            # A test of stale statistics must not be cured by chance.
            conn.execute("ALTER TABLE pgq_core.jobs SET (autovacuum_enabled = off)")
            return conn

        yield database


@pytest.fixture(scope="module")
def busy(databases: Any) -> psycopg.Connection:
    """A busy queue with a history: 100,000 jobs, analysed."""
    conn: psycopg.Connection = databases("busy")
    load(conn, "done", 60_000, finished=3)
    load(conn, "done", 10_000, finished=8)
    load(conn, "failed", 1_000, finished=20)
    load(conn, "queued", 10_000, at=86_400)
    load(conn, "queued", 10_000, at=-10)
    load(conn, "queued", 4_000, at=86_400, queue="low", priority=0)
    load(conn, "queued", 3_000, at=-10, queue="low", priority=9)
    load(conn, "running", 1_000, attempts=1, lease=60)
    load(conn, "running", 1_000, attempts=1, lease=-60)
    conn.execute("VACUUM ANALYZE pgq_core.jobs")
    return conn


# --- a busy queue ---


def test_a_claim_reads_and_locks_no_more_than_it_takes(busy: psycopg.Connection) -> None:
    plan = explain(busy, "claim", queue="default", limit=10, lease=LEASE, worker="w")
    assert plan.scans == []
    assert plan.indexes == {"jobs_ready_idx", "jobs_pkey"}
    assert plan.sorts_above_a_lock == []
    assert plan.rows <= 2 * 10
    [locks] = [n for n in plan.nodes if n.kind == "LockRows"]
    assert locks.rows == 10
    assert locks.pages <= 10 * 3 + 2 * 10 + 10


def test_a_claim_of_the_last_priority_walks_past_no_job_of_another(
    busy: psycopg.Connection,
) -> None:
    """All better ones are for tomorrow, and a probe for each of them reads none of this one."""
    plan = explain(busy, "claim", queue="low", limit=10, lease=LEASE, worker="w")
    [locks] = [n for n in plan.nodes if n.kind == "LockRows"]
    assert plan.rows <= 2 * 10
    assert locks.pages <= 10 * 3 + 2 * 10 + 10


def test_a_claim_that_finds_nothing_reads_nothing(busy: psycopg.Connection) -> None:
    plan = explain(busy, "claim", queue="other", limit=1000, lease=LEASE, worker="w")
    assert plan.scans == []
    assert plan.rows == 0


def test_a_claim_puts_what_it_locks_into_a_part_of_its_own(busy: psycopg.Connection) -> None:
    """A sub-select may be run again for each row, and then takes more than its limit."""
    plan = explain(busy, "claim", queue="default", limit=10, lease=LEASE, worker="w")
    [locks] = [n for n in plan.nodes if n.kind == "LockRows"]
    assert "ModifyTable" not in locks.above
    assert "CTE next" in [n.plan.get("Subplan Name") for n in plan.nodes]


def test_a_reclaim_reads_the_expired_leases_only(busy: psycopg.Connection) -> None:
    for queue in (None, "default"):
        plan = explain(busy, "reclaim", queue=queue, limit=100)
        assert plan.scans == []
        assert plan.indexes >= {"jobs_lease_idx", "jobs_spent_idx", "jobs_pkey"}
        assert plan.sorts_above_a_lock == []
        assert plan.rows <= 2 * 100


def test_a_reclaim_of_a_queue_at_rest_reads_nothing(busy: psycopg.Connection) -> None:
    plan = explain(busy, "reclaim", queue="other", limit=1000)
    assert plan.scans == []
    assert plan.rows == 0


@pytest.mark.parametrize(
    ("verb", "params"),
    [
        ("complete", {}),
        ("release", {}),
        ("fail", {"error": "no", "delay": None}),
        ("snooze", {"delay": LEASE}),
        ("discard", {"error": "no"}),
        ("extend", {"lease": LEASE}),
        ("unknown", {}),
    ],
)
@pytest.mark.parametrize("count", [1, 10, 100])
def test_a_write_under_the_fence_goes_by_the_ids(
    busy: psycopg.Connection, verb: str, params: dict[str, object], count: int
) -> None:
    """By the leases' index it would walk the dead entries of every lease that has ended."""
    plan = explain(busy, verb, **fenced(busy, count, **params))
    assert plan.scans == []
    assert plan.indexes == {"jobs_pkey"}
    assert plan.rows <= 2 * count


def test_the_settled_are_looked_up_by_their_ids(busy: psycopg.Connection) -> None:
    plan = explain(busy, "settled", **fenced(busy, 10, verb="complete"))
    assert plan.scans == []
    assert plan.indexes == {"jobs_pkey"}


def test_the_outlook_reads_two_rows_per_priority_and_two_leases(busy: psycopg.Connection) -> None:
    plan = explain(busy, "outlook", queue="default")
    assert plan.scans == []
    assert plan.indexes == {"jobs_ready_idx", "jobs_lease_idx"}
    assert plan.rows <= 22


def test_a_crowd_reads_the_leases_and_one_due_job(busy: psycopg.Connection) -> None:
    plan = explain(busy, "crowd", queue="default", worker="w")
    assert plan.scans == []
    assert plan.indexes == {"jobs_lease_idx", "jobs_ready_idx"}
    assert plan.rows <= 1000 + 1


def test_who_has_work_steps_from_queue_to_queue(busy: psycopg.Connection) -> None:
    plan = explain(busy, "with_work")
    assert plan.scans == []
    assert plan.indexes == {"jobs_ready_idx", "jobs_lease_idx"}
    assert plan.rows <= 1000 + 10


@pytest.mark.parametrize("archive", [False, True])
def test_mig_06_a_cleanup_reads_a_batch(busy: psycopg.Connection, *, archive: bool) -> None:
    plan = explain(busy, "cleanup", done=7 * DAY, limit=100, archive=archive, **KEEP)
    assert plan.scans == []
    assert plan.indexes == {"jobs_finished_idx", "jobs_pkey"}
    assert plan.sorts_above_a_lock == []
    assert plan.rows <= 2 * 100


def test_a_cleanup_with_nothing_to_do_reads_nothing(busy: psycopg.Connection) -> None:
    plan = explain(busy, "cleanup", done=9 * DAY, limit=10_000, archive=False, **KEEP)
    assert plan.scans == []
    assert plan.rows == 0


def test_mig_09_the_figures_count_no_job_that_is_done(busy: psycopg.Connection) -> None:
    busy.execute("VACUUM pgq_core.jobs")  # what the other tests have left
    plan = explain(busy, "stats")
    assert plan.scans == []
    assert plan.indexes == {"jobs_ready_idx", "jobs_lease_idx", "jobs_finished_idx"}
    assert plan.rows <= 27_000 + 2_000 + 1_000


def test_a_conflict_of_keys_is_looked_up_by_the_key(busy: psycopg.Connection) -> None:
    plan = explain(busy, "find_keys", queue=["default"], unique_key=["k"])
    assert plan.scans == []
    assert plan.indexes == {"jobs_unique_idx"}


def test_a_page_of_jobs_is_read_from_the_newest(busy: psycopg.Connection) -> None:
    given = dict.fromkeys(("before", "queue", "task", "status", "unique_key", "worker"))
    plan = explain(busy, "find", **given, limit=50)
    assert plan.scans == []
    assert plan.rows <= 50


# --- statistics that tell of another time ---


@pytest.fixture(scope="module")
def seen_empty(databases: Any) -> psycopg.Connection:
    """Analysed when it was empty, then loaded."""
    conn: psycopg.Connection = databases("seen_empty")
    conn.execute("ANALYZE pgq_core.jobs")
    load(conn, "done", 85_000, finished=3)
    load(conn, "queued", 10_000, at=-10)
    load(conn, "running", 1_000, attempts=1, lease=60)
    load(conn, "running", 1_000, attempts=1, lease=-60)
    return conn


@pytest.fixture(scope="module")
def seen_full(databases: Any) -> psycopg.Connection:
    """Analysed with a backlog, then drained to the last ten."""
    conn: psycopg.Connection = databases("seen_full")
    load(conn, "queued", 100_000, at=-10)
    conn.execute("ANALYZE pgq_core.jobs")
    conn.execute("""UPDATE pgq_core.jobs SET status = 'done', finished_at = now(), attempts = 1
        WHERE id <= 99990""")
    conn.execute("""UPDATE pgq_core.jobs SET status = 'running', attempts = 1,
        locked_until = now() - interval '1 s' WHERE id > 99995""")
    return conn


@pytest.fixture(scope="module")
def seen_done(databases: Any) -> psycopg.Connection:
    """One job in a long history, which no sample of it shows."""
    conn: psycopg.Connection = databases("seen_done")
    load(conn, "done", 100_000, finished=3)
    conn.execute("ANALYZE pgq_core.jobs")
    load(conn, "queued", 1, at=-10)
    load(conn, "running", 1, attempts=1, lease=-60)
    return conn


@pytest.fixture(params=["seen_empty", "seen_full", "seen_done"])
def stale(request: pytest.FixtureRequest) -> psycopg.Connection:
    """A table whose statistics are of another time."""
    conn = request.getfixturevalue(request.param)
    assert isinstance(conn, psycopg.Connection)
    return conn


@pytest.mark.parametrize("limit", [10, 1000])
def test_clm_04_a_claim_keeps_its_plan(stale: psycopg.Connection, limit: int) -> None:
    plan = explain(stale, "claim", queue="default", limit=limit, lease=LEASE, worker="w")
    assert plan.scans == []
    assert plan.indexes == {"jobs_ready_idx", "jobs_pkey"}
    assert plan.sorts_above_a_lock == []
    assert plan.rows <= 2 * limit + 10


@pytest.mark.parametrize("limit", [10, 1000])
def test_clm_04_a_reclaim_keeps_its_plan(stale: psycopg.Connection, limit: int) -> None:
    plan = explain(stale, "reclaim", queue=None, limit=limit)
    assert plan.scans == []
    assert plan.indexes >= {"jobs_lease_idx", "jobs_spent_idx"}
    assert plan.rows <= 2 * limit


@pytest.mark.parametrize("count", [10, 100])
def test_a_completion_keeps_its_plan(stale: psycopg.Connection, count: int) -> None:
    plan = explain(stale, "complete", **fenced(stale, count))
    assert plan.scans == []
    assert plan.indexes == {"jobs_pkey"}
    assert plan.rows <= 2 * count


@pytest.mark.parametrize(
    ("name", "params", "rows"),
    [
        ("outlook", {"queue": "default"}, 22),
        ("crowd", {"queue": "default", "worker": "w"}, 1001),
        ("with_work", {}, 1010),
        ("cleanup", {"done": DAY, "limit": 1000, "archive": False, **KEEP}, 2000),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_other_statement_falls_back_on_the_whole_table(
    stale: psycopg.Connection, name: str, params: dict[str, object], rows: int
) -> None:
    plan = explain(stale, name, **params)
    assert plan.scans == []
    assert plan.rows <= rows
