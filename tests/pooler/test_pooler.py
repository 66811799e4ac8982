"""The whole path through a real PgBouncer: transaction mode, two server sessions for ten."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from local.pgbouncer import pgbouncer
from local.postgres import Server
from pgq_core import (
    NewJob,
    Producer,
    Tasks,
    claim,
    enqueue,
    enqueue_many,
    migrate,
    queues,
    reaper,
    work,
)
from pgq_core.db import Connection
from pgq_core.migrate import migrations

Pooled = Callable[[], Connection]
SETTINGS = "SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name"
LOCKS = "SELECT locktype, objid::text FROM pg_locks WHERE locktype = 'advisory'"


class Recorder:
    """A kick that only remembers."""

    def __init__(self) -> None:
        self.kicks: list[str] = []

    def kick(self, queue: str, hop: int = 0) -> bool:
        self.kicks.append(queue)
        return not hop


def through_pgbouncer(server: Server, dsn: str, pool_size: int) -> Iterator[Pooled]:
    database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with pgbouncer(server, database=str(database), pool_size=pool_size) as address:
        yield lambda: psycopg.connect(address)


@pytest.fixture
def pooled(server: Server, dsn: str) -> Iterator[Pooled]:
    yield from through_pgbouncer(server, dsn, 2)


@pytest.fixture
def single(server: Server, dsn: str) -> Iterator[Pooled]:
    """Whatever is left in the only session, the next client has."""
    yield from through_pgbouncer(server, dsn, 1)


@pytest.fixture
def empty(server: Server, empty_dsn: str) -> Iterator[Pooled]:
    """The same, to a database with nothing in it."""
    yield from through_pgbouncer(server, empty_dsn, 1)


def session(pooled: Pooled) -> list[tuple[object, ...]]:
    """What the server session of the next client has: settings of its own and advisory locks."""
    with pooled() as client:
        found = client.execute(SETTINGS).fetchall()
        return found + client.execute(LOCKS).fetchall()


def test_pool_01_ten_workers_share_two_sessions_and_run_each_job_once(
    pooled: Pooled, conn: Connection
) -> None:
    with pooled() as producer:
        enqueue_many(producer, [NewJob("count", {"n": n}) for n in range(500)])
    ran: list[int] = []
    tasks = Tasks()
    tasks.handler("count")(lambda job: ran.append(job.payload["n"]))
    with ThreadPoolExecutor(10) as threads:
        workers = [threads.submit(work, pooled, tasks, batch_size=5) for _ in range(10)]
        reports = [worker.result() for worker in workers]
    assert sorted(ran) == list(range(500))
    assert sum(report.done for report in reports) == 500
    assert sum(report.lost for report in reports) == 0
    assert conn.execute("SELECT DISTINCT status, attempts FROM pgq_core.jobs").fetchall() == [
        ("done", 1)
    ]


def test_pool_03_every_verb_works_and_leaves_nothing_in_the_session(
    single: Pooled, conn: Connection
) -> None:
    kick = Recorder()
    producer = Producer(kick)
    with single() as client:
        before = client.execute(SETTINGS).fetchall()
    with single() as client, producer.transaction(client) as tx:
        tx.enqueue("effect", {})
        tx.enqueue("broken", {}, max_attempts=1)
    tasks = Tasks()

    @tasks.handler("effect")
    def effect(_job: object, ctx: object) -> None:
        with ctx.transaction() as own:  # type: ignore[attr-defined]
            own.execute("CREATE TABLE effect ()")

    @tasks.handler("broken")
    def broken(_job: object) -> None:
        raise ValueError("broken")

    report = work(single, tasks, kick=kick)
    assert (report.done, report.failed, kick.kicks) == (1, 1, ["default"])
    conn.execute("UPDATE pgq_core.jobs SET finished_at = now() - interval '1 year'")
    with single() as client:
        client.autocommit = True
        assert reaper.reclaim(client) == []
        assert reaper.cleanup(client, done=timedelta(days=1), archive=True) == 2
        assert client.execute("SELECT FROM effect").fetchall() == []
        assert client.execute(SETTINGS).fetchall() == before
    left = "SELECT count(*) FROM pg_prepared_statements"
    with single() as client:
        assert client.execute(left).fetchone() == (0,)


REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION ''no'' USING ERRCODE = ''disk_full''; END';
    CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON pgq_core.queues FOR EACH ROW
        EXECUTE FUNCTION refuse();
    CREATE TRIGGER refuse BEFORE UPDATE ON pgq_core.jobs FOR EACH ROW EXECUTE FUNCTION refuse()"""
EXPIRE = """
    UPDATE pgq_core.jobs SET locked_until = now() - interval '1 s' WHERE status = 'running'"""
HOUR = timedelta(hours=1)
BOUNDED: dict[str, Callable[[Connection], object]] = {
    "wake": lambda conn: queues.wake(conn, "default", None),
    "note_alarm": lambda conn: queues.note_alarm(conn, "default", datetime.now(UTC) + HOUR),
    "request_kick": lambda conn: queues.request_kick(conn, "default"),
    "claim": lambda conn: claim.claim(conn, "default", 1, HOUR),
}


@pytest.mark.parametrize("step", BOUNDED)
def test_pool_03_an_error_leaves_nothing_to_the_next_client(
    single: Pooled, conn: Connection, step: str
) -> None:
    enqueue(conn, "t", {})
    before = session(single)
    conn.execute(REFUSE.encode())
    with single() as client:
        client.autocommit = True
        with pytest.raises(psycopg.errors.DiskFull):
            BOUNDED[step](client)
        assert session(single) == before  # while the client that failed is still there


def test_pool_05_migrating_and_reclaiming_twice_leaves_no_lock(empty: Pooled) -> None:
    before = session(empty)
    for applied in ([one.name for one in migrations()], []):
        with empty() as client:
            assert migrate(client) == applied
        assert session(empty) == before
    for _ in range(2):
        with empty() as client:
            client.autocommit = True
            enqueue(client, "t", {})
            claim.claim(client, "default", 1, HOUR)
            client.execute(EXPIRE)
            assert len(reaper.reclaim(client)) == 1
        assert session(empty) == before
