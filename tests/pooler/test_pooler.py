"""The whole path through a real PgBouncer: transaction mode, two server sessions for ten."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from local.pgbouncer import pgbouncer
from local.postgres import Server
from pgq_core import NewJob, Producer, Tasks, enqueue_many, reaper, work
from pgq_core.db import Connection

Pooled = Callable[[], Connection]
SETTINGS = "SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name"


class Recorder:
    """A kick that only remembers."""

    def __init__(self) -> None:
        self.kicks: list[str] = []

    def kick(self, queue: str, hop: int = 0) -> bool:
        self.kicks.append(queue)
        return not hop


@pytest.fixture
def pooled(server: Server, dsn: str) -> Iterator[Pooled]:
    database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with pgbouncer(server, database=str(database), pool_size=2) as address:
        yield lambda: psycopg.connect(address)


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
    pooled: Pooled, conn: Connection
) -> None:
    kick = Recorder()
    producer = Producer(kick)
    with pooled() as client:
        before = client.execute(SETTINGS).fetchall()
    with pooled() as client, producer.transaction(client) as tx:
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

    report = work(pooled, tasks, kick=kick)
    assert (report.done, report.failed, kick.kicks) == (1, 1, ["default"])
    conn.execute("UPDATE pgq_core.jobs SET finished_at = now() - interval '1 year'")
    with pooled() as client:
        client.autocommit = True
        assert reaper.reclaim(client) == []
        assert reaper.cleanup(client, done=timedelta(days=1), archive=True) == 2
        assert client.execute("SELECT FROM effect").fetchall() == []
        assert client.execute(SETTINGS).fetchall() == before
    left = "SELECT count(*) FROM pg_prepared_statements"
    with pooled() as client:
        assert client.execute(left).fetchone() == (0,)
