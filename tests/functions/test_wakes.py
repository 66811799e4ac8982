"""Wakes that come twice, late, all at once, or before the database is awake."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from functions import _runtime as runtime
from functions import reaper, worker
from pgq_core import Context, DrainReport, Job, NewJob, Tasks, enqueue, enqueue_many, work
from tests.conftest import Connect
from tests.functions.fakes import Alarms, FakeContext, one, sessions
from tests.worker.fakes import until

ROOT = Path(__file__).parents[2]
DOUBLED = 60  # jobs of an event that comes twice
STALE = 50  # wakes on an empty queue
BURST, JOBS, CONNECTIONS = 50, 200, 10  # wakes at once, on what they find, within which limit
RESUME = 0.3  # s that the database takes to wake

Few = Callable[[int], object]

NOTHING = {"default": asdict(DrainReport())}


def statuses(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("SELECT status, count(*)::int FROM pgq_core.jobs GROUP BY 1"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note whenever a function opens a connection, or tries to."""
    noted: list[str] = []
    connect: Callable[..., Any] = psycopg.connect

    def connect_and_note(*address: str, **options: Any) -> Any:
        if (name := options.get("application_name", "")).startswith("pgq/"):
            noted.append(name)
        return connect(*address, **options)

    monkeypatch.setattr(psycopg, "connect", connect_and_note)
    return noted


# --- twice, and late ---


def test_lam_01_an_event_delivered_twice_runs_no_job_twice(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, context: FakeContext
) -> None:
    conn.execute("CREATE TABLE starts (job bigint, process bigint)")
    enqueue_many(conn, [NewJob("meet", {})] * DOUBLED)
    monkeypatch.setenv("PGQ_TASKS", "tests.functions.twice:tasks")
    again = [sys.executable, "-m", "tests.functions.twice", context.aws_request_id]
    both = [subprocess.Popen(again, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert one(conn, "SELECT count(DISTINCT process) FROM starts") == 2
    assert one(conn, "SELECT count(DISTINCT job) FROM starts") == DOUBLED
    assert worker.handler({"queue": "default"}, context) == NOTHING, "minutes later, once more"
    assert one(conn, "SELECT count(*) FROM starts") == DOUBLED
    assert statuses(conn) == {"done": DOUBLED}


def test_lam_03_stale_wakes_cost_a_connection_each_and_write_nothing(
    conn: psycopg.Connection, opened: list[str]
) -> None:
    for number in range(STALE):
        context = FakeContext(request_id=f"request {number}")
        assert worker.handler({"queue": "default"}, context) == NOTHING
    assert opened == ["pgq/worker"] * STALE
    assert sessions(conn) == 0  # what a session did is counted when it ends
    written = "SELECT sum(n_tup_upd + n_tup_del + n_dead_tup) FROM pg_stat_user_tables"
    assert one(conn, written) == 0
    assert one(conn, "SELECT sum(n_tup_ins) FROM pg_stat_user_tables") == 1, "the queue's row"


def test_lam_07_the_two_sweeps_of_an_empty_queue_cost_two_connections(
    context: FakeContext, opened: list[str]
) -> None:
    assert worker.handler({"queue": "*"}, context) == {}
    assert reaper.handler({}, context) == {"reclaimed": 0, "removed": 0}
    assert opened == ["pgq/worker", "pgq/reaper"]


# --- all at once ---


@pytest.fixture
def few(conn: psycopg.Connection, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Few]:
    """Let the functions have as many connections to the database at a time."""
    conn.execute("CREATE ROLE few LOGIN IN ROLE postgres")
    monkeypatch.setenv("DATABASE_URL", make_conninfo(dsn, user="few"))
    yield lambda limit: conn.execute(f"ALTER ROLE few CONNECTION LIMIT {limit}")
    conn.execute("DROP ROLE few")


class Burst:
    """Wakes at once; each of their jobs ends when those that were refused have ended."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.ran: list[int] = []
        self.refused: list[str] = []
        self.all_there = threading.Barrier(BURST)
        self.refusals_ended = threading.Event()
        tasks.handler("hold")(self.hold)

    def hold(self, job: Job) -> None:
        self.ran.append(job.id)
        assert self.refusals_ended.wait(20)

    def wake(self, number: int) -> None:
        self.all_there.wait()
        try:
            name = f"request {number}"
            work(lambda: runtime.connect("worker"), self.tasks, alarm=Alarms(), worker_id=name)
        except psycopg.OperationalError as error:
            self.refused.append(str(error))
            if len(self.refused) >= BURST - CONNECTIONS:
                self.refusals_ended.set()


def test_lam_08_a_burst_over_the_limit_of_connections_does_all_jobs_once(
    conn: psycopg.Connection, tasks: Tasks, opened: list[str], few: Few
) -> None:
    few(CONNECTIONS)
    enqueue_many(conn, [NewJob("hold", {})] * JOBS)
    burst = Burst(tasks)
    with ThreadPoolExecutor(BURST) as pool:
        list(pool.map(burst.wake, range(BURST)))
    assert len(opened) == BURST, "a refused one tries no more"
    assert BURST - CONNECTIONS <= len(burst.refused) < BURST
    assert all("too many connections" in message for message in burst.refused)
    assert statuses(conn) == {"done": JOBS}
    assert len(burst.ran) == len(set(burst.ran)) == JOBS


def test_lam_08_a_handler_without_a_connection_of_its_own_is_tried_again_alone(
    conn: psycopg.Connection, tasks: Tasks, context: FakeContext, few: Few
) -> None:
    @tasks.handler("writes")
    def writes(_job: Job, ctx: Context) -> None:
        with ctx.transaction() as own:
            own.execute("SELECT 1")

    tasks.handler("ok")(lambda _: None)
    few(1)
    enqueue_many(conn, [NewJob("writes", {}), NewJob("ok", {})])
    report = worker.handler({"queue": "default"}, context)["default"]
    assert (report["done"], report["retried"]) == (1, 1)
    error = one(conn, "SELECT last_error FROM pgq_core.jobs WHERE task = 'writes'")
    assert "too many connections" in error


# --- before the database is awake ---


class Proxy:
    """Stand before a database that sleeps: what connects is held until `wake`."""

    def __init__(self, dsn: str) -> None:
        parts = conninfo_to_dict(dsn)
        self.server = socket.socket()
        self.server.bind(("127.0.0.1", 0))
        self.dsn = make_conninfo(dsn, port=self.server.getsockname()[1])
        self.database = (str(parts["host"]), int(str(parts["port"])))
        self.open: list[socket.socket] = [self.server]

    def listen(self) -> None:
        self.server.listen()

    def wake(self) -> None:
        """Pass on what has connected and what will."""
        self.listen()
        threading.Thread(target=self.serve).start()

    def serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self.server.accept()
                upstream = socket.create_connection(self.database)
                self.open += [client, upstream]
                for ends in ((client, upstream), (upstream, client)):
                    threading.Thread(target=pump, args=ends).start()

    def close(self) -> None:
        for end in self.open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A database that sleeps, with one job in it; nothing listens yet."""
    proxy = Proxy(dsn)
    monkeypatch.setenv("DATABASE_URL", proxy.dsn)
    yield proxy
    proxy.close()


@pytest.fixture
def one_job(conn: psycopg.Connection, tasks: Tasks) -> Callable[[], dict[str, int]]:
    tasks.handler("ok")(lambda _: None)
    enqueue(conn, "ok", {})
    return partial(statuses, conn)


def test_lam_09_a_wake_waits_for_a_database_that_resumes_in_time(
    proxy: Proxy, one_job: Callable[[], dict[str, int]], context: FakeContext
) -> None:
    proxy.listen()
    threading.Timer(RESUME, proxy.wake).start()
    assert worker.handler({"queue": "default"}, context)["default"]["done"] == 1
    assert one_job() == {"done": 1}


@pytest.mark.parametrize("refusing", [True, False])
def test_lam_09_a_wake_before_the_database_is_there_fails_and_the_next_finds_its_job(
    *,
    refusing: bool,
    proxy: Proxy,
    one_job: Callable[[], dict[str, int]],
    context: FakeContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGQ_CONNECT_TIMEOUT", "1")
    if not refusing:
        proxy.listen()
    with pytest.raises(psycopg.OperationalError):  # so that Lambda repeats it
        worker.handler({"queue": "default"}, context)
    assert one_job() == {"queued": 1}
    proxy.wake()
    assert worker.handler({"queue": "default"}, context)["default"]["done"] == 1


# --- when it is over ---


def test_lam_17_no_thread_of_ours_outlives_an_invocation(
    conn: psycopg.Connection, connect: Connect, tasks: Tasks, context: FakeContext
) -> None:
    watch = connect()

    @tasks.handler("see")
    def see(job: Job) -> None:
        """End when the batch's first has been written, by the timer beside this one."""
        first = "SELECT status <> 'running' FROM pgq_core.jobs WHERE id = %s"
        while watch.execute(first, [job.payload["first"]]).fetchone() != (True,):
            pass

    tasks.handler("ok")(lambda _: None)
    before = set(threading.enumerate())
    for _ in range(3):
        enqueue(conn, "see", {"first": enqueue(conn, "ok", {}).id})
        assert worker.handler({"queue": "default"}, context)["default"]["done"] == 2
        until(lambda: set(threading.enumerate()) <= before)  # a cancelled timer takes a moment
