"""The three roles of infra/roles.sql: each can do its work, and is refused everything else."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from pgq_core import NewJob, NoAlarm, Producer, Tasks, enqueue, queues, reaper, schedules, work
from pgq_core.db import statement
from pgq_core.migrate import check
from tests.conftest import Connect

ROOT = Path(__file__).parents[2]
ROLES = (ROOT / "infra" / "roles.sql").read_bytes()
# Nobody's but the owner's, and those that EXPLAIN cannot tell of.
OWNERS = {
    "notify_on",
    "notify_off",
    "note_migration",
    "put_schedule",
    "drop_schedules",
    "set_queue",
    "begin_migration",
    "listen",
}
PRODUCERS = {"enqueue", "enqueue_many", "find_keys", "request_kick", "withdraw_kick"}
HARMLESS = {"clock", "facts", "hearing", "tell", "ledger"}  # they read nothing of the jobs
LOOKS = {"get", "find", "settled", "holds", "stats", "stranded", "with_work", "outlook", "crowd"}
SETTLES = {"complete", "fail", "snooze", "discard", "unknown", "release", "extend"}
WORKERS = {
    *{"claim", "wake", "reclaim", "due_schedules", "fire_schedule", "pause_schedule"},
    *{"note_alarm", "defer_alarm", "list_schedules", "retry", "cancel"},
}
KEEPERS = {"reclaim", "cleanup", "note_alarm", "defer_alarm", "list_schedules"}
MAY = {
    "pgq_producer": PRODUCERS | HARMLESS,
    "pgq_worker": PRODUCERS | HARMLESS | LOOKS | SETTLES | WORKERS,
    # Who may put a job back may settle it, too: the same column of the same table.
    "pgq_reaper": HARMLESS | LOOKS | SETTLES | KEEPERS
    | {"find_keys", "enqueue", "due_schedules", "claim", "retry", "cancel"},
}  # fmt: skip
REFUSED = {
    "pgq_producer": [
        "SELECT payload FROM pgq_core.jobs",
        "UPDATE pgq_core.jobs SET run_at = now()",
        "INSERT INTO pgq_core.jobs (task, status) VALUES ('t', 'done')",
        "INSERT INTO pgq_core.jobs (task, attempts) VALUES ('t', 1)",
        "UPDATE pgq_core.queues SET alarm_at = now()",
        "SELECT FROM pgq_core.schedules",
    ],
    "pgq_worker": [
        "DELETE FROM pgq_core.jobs",
        "INSERT INTO pgq_core.jobs (task, status) VALUES ('t', 'done')",
        "UPDATE pgq_core.schedules SET cron = '* * * * *'",
        "SELECT FROM pgq_core.jobs_archive",
    ],
    "pgq_reaper": [
        "INSERT INTO pgq_core.jobs (task) VALUES ('t')",
        "SELECT * FROM pgq_core.enqueue('t')",
        "DELETE FROM pgq_core.jobs_archive",
        "SELECT FROM pgq_core.jobs_archive",
        "UPDATE pgq_core.schedules SET paused = true",
    ],
}
EVERYBODY = [
    "UPDATE pgq_core.queues SET paused = true",
    "UPDATE pgq_core.queues SET max_workers = 1",
    "DELETE FROM pgq_core.queues",
    "DELETE FROM pgq_core.schedules",
    "INSERT INTO pgq_core.schedules (name, cron, task, next_at) VALUES ('', '', '', now())",
    "DELETE FROM pgq_core.migrations",
    "TRUNCATE pgq_core.jobs",
    "CREATE TABLE pgq_core.mine ()",
    "CREATE TRIGGER t AFTER INSERT ON pgq_core.jobs EXECUTE FUNCTION pgq_core.notify()",
    "ALTER TABLE pgq_core.jobs ADD COLUMN mine text",
    "DROP SCHEMA pgq_core CASCADE",
]
As = Callable[[str], psycopg.Connection]


@pytest.fixture
def as_member(conn: psycopg.Connection, connect: Connect) -> Iterator[As]:
    """Apply the file, twice, and connect as a role of it."""
    conn.execute(ROLES)
    conn.execute(ROLES)
    yield lambda role: connect(options=f"-c role={role}")
    for role in MAY:
        conn.execute(f"DROP OWNED BY {role}".encode())
        conn.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("role", MAY)
def test_each_role_may_run_the_statements_of_its_work_and_no_other(
    as_member: As, role: str
) -> None:
    member, allowed = as_member(role), set()
    names = {path.stem for path in (ROOT / "pgq_core" / "sql").glob("*.sql")} - OWNERS
    for name in names:
        try:
            member.execute(b"EXPLAIN " + statement(name), defaultdict(lambda: None))
            allowed.add(name)
        except InsufficientPrivilege:
            pass
    assert allowed == MAY[role]


@pytest.mark.parametrize(
    ("role", "refused"),
    [(role, query) for role, queries in REFUSED.items() for query in [*queries, *EVERYBODY]],
)
def test_each_role_is_refused_what_is_not_its_work(as_member: As, role: str, refused: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        as_member(role).execute(refused.encode())


def test_mig_05_the_three_do_the_whole_work_of_a_deployment(
    as_member: As, conn: psycopg.Connection
) -> None:
    producer, keeper = as_member("pgq_producer"), as_member("pgq_reaper")
    schedules.put(conn, schedules.NewSchedule(name="n", cron="0 0 1 1 *", task="t"))
    conn.execute("UPDATE pgq_core.schedules SET next_at = now()")

    class Counted(list[str]):
        def kick(self, queue: str, hop: int = 0) -> bool:
            self.append(queue)
            return not hop

    kicks = Counted()
    check(producer)
    with Producer(kicks).transaction(producer) as tx:
        tx.enqueue_many([NewJob("t", {}, unique_key="k"), NewJob("t", {}, unique_key="k")])
        tx.enqueue("t", {}, unique_key="k")
        tx.enqueue("t", {}, delay=timedelta(hours=1))
    assert kicks == ["default"]
    tasks = Tasks()
    tasks.handler("t")(lambda _: None)
    report = work(lambda: as_member("pgq_worker"), tasks, alarm=NoAlarm(), kick=kicks)
    assert (report.done, report.lost) == (2, 0)  # the enqueued one and the slot's
    queues.stats(keeper)
    conn.execute("UPDATE pgq_core.jobs SET finished_at = now() - interval '9 days'")
    assert reaper.reclaim_all(keeper) == []
    assert reaper.cleanup(keeper, archive=True) == 2


def test_mig_05_an_enqueue_that_row_security_forbids_says_so(
    as_member: As, conn: psycopg.Connection
) -> None:
    """What a worker is not shown it cannot tell from what is not there: that, the doctor says."""
    conn.execute("ALTER TABLE pgq_core.jobs ENABLE ROW LEVEL SECURITY")
    with pytest.raises(InsufficientPrivilege, match='row-level security policy for table "jobs"'):
        enqueue(as_member("pgq_producer"), "t", {})
