"""A long run through the functions' handlers: failures, crashes, restarts of the server.

`make soak` runs 1,000,000 jobs (JOBS= for another number) and writes docs/benchmarks/soak.md. What
stands for Lambda are processes, one invocation at a time each: one that dies is replaced and its
event repeated, as Lambda does, after a second instead of a minute. Kicks and alarms go to it too.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psycopg

from bench.machine import machine
from local.postgres import Server, postgres
from pgq_core import Context, Discard, Job, NewJob, Producer, Tasks, migrate

JOBS = int(os.environ.get("JOBS", "1000000"))
WORKERS, BATCH, TIMEOUT = 2, 100, 30  # processes, and one for the reaper; jobs of a claim; s
BULK, BACKLOG = 1000, 5000  # jobs of a transaction; unfinished ones, above which it waits
RESTART, SAMPLE, REAP, ROWS = 150.0, 10.0, 15.0, 15  # s between two; rows of the report
#: What a job does, where its number divided by the first leaves the second; the first that fits.
PLAN = {"crash": (2000, 7), "fail": (20, 1), "discard": (1000, 3), "effect": (10, 0)}
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "soak.md"
ENV = {
    "PGQ_TASKS": "bench.soak:tasks",
    "PGQ_BATCH_SIZE": str(BATCH),
    "PGQ_KEEP_DONE": "0",
    "PGQ_WORKER_ARN": "arn:aws:lambda:eu-west-1:123456789012:function:soak-worker",
    "PGQ_ALARM_GROUP": "soak-alarms",
    "PGQ_ALARM_ROLE_ARN": "arn:aws:iam::123456789012:role/soak",
    "POWERTOOLS_LOG_LEVEL": "CRITICAL",
}
#: `ended` is written by the statement that ends a job: it also knows those that were removed.
TABLES = """
CREATE EXTENSION pgstattuple;
CREATE TABLE batches (first int PRIMARY KEY);
CREATE TABLE mishaps (n int PRIMARY KEY);
CREATE TABLE effects (n int);
CREATE TABLE ended (n int, does text, status text, spent int, error text);
CREATE FUNCTION note_ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO ended SELECT (payload->>'n')::int, payload->>'does', status, attempts - released,
        left(last_error, 60) FROM new WHERE status NOT IN ('queued', 'running');
    RETURN NULL;
END $$;
CREATE TRIGGER note_ends AFTER UPDATE ON pgq_core.jobs
    REFERENCING NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION note_ends();
"""
LEFT = "SELECT count(*) FROM pgq_core.jobs WHERE status IN ('queued', 'running')"
#: By pgstattuple, for a stop at once makes the server forget its own count of dead rows.
SIZES = """
SELECT (SELECT count(*) FROM ended), pg_table_size('pgq_core.jobs') / 1e6,
       pg_indexes_size('pgq_core.jobs') / 1e6, dead_tuple_count FROM pgstattuple('pgq_core.jobs')
"""
OTHERWISE = "FROM ended WHERE (status = 'done') = (does = 'discard')"
WRONG = {  # what must be 0
    "jobs that never ended": "SELECT %(jobs)s - count(DISTINCT n) FROM ended",
    "jobs that ended twice": "SELECT count(*) - count(DISTINCT n) FROM ended",
    "jobs left unfinished": LEFT,
    "jobs that ended otherwise than planned": f"SELECT count(*) {OTHERWISE}",
    "effects missing": "SELECT %(effect)s - count(DISTINCT n) FROM effects",
    "effects made twice": "SELECT count(*) - count(DISTINCT n) FROM effects",
    "planned crashes and failures not made": "SELECT %(mishaps)s - count(*) FROM mishaps",
}
REASONS = f"SELECT error, count(*) {OTHERWISE} GROUP BY 1 ORDER BY 2 DESC"
SPENT = "SELECT spent, count(*) FROM ended GROUP BY 1 ORDER BY 1"

tasks = Tasks()


def is_first(n: int) -> bool:
    """Note that the mishap of a job has happened; False if it had before."""
    with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
        note = "INSERT INTO mishaps VALUES (%s) ON CONFLICT DO NOTHING"
        return conn.execute(note, [n]).rowcount == 1


@tasks.handler("work", timeout=timedelta(seconds=5), backoff=lambda _: timedelta(seconds=1))
def work(job: Job, ctx: Context) -> None:
    """Do as planned: kill the process once, fail once, be given up, or succeed."""
    n, does = job.payload["n"], job.payload["does"]
    if does == "crash" and is_first(n):
        os.kill(os.getpid(), signal.SIGKILL)
    if does == "fail" and is_first(n):
        raise ValueError(f"{n} fails the first time")
    if does == "discard":
        raise Discard("planned")
    if does == "effect":
        with ctx.transaction() as conn:
            conn.execute("INSERT INTO effects VALUES (%s)", [n])


def planned(n: int) -> str:
    """Return what the job of a number does."""
    return next((does for does, (of, left) in PLAN.items() if n % of == left), "plain")


def environment(pipe: Pipe, dsn: str) -> None:
    """Be one execution environment: take an event, run its function, say how it ended."""
    os.environ.update(ENV, DATABASE_URL=dsn)
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - metrics; for as long as it lives
    from functions import _runtime, reaper, worker

    class Platform:
        def kick(self, queue: str, hop: int = 0) -> bool:
            pipe.send(({"queue": queue, "hop": hop}, 0.0))
            return True

        def arm(self, queue: str, at: datetime) -> bool:
            event = {"queue": queue, "alarm": at.isoformat()}
            pipe.send((event, max(0.0, (at - datetime.now(UTC)).total_seconds())))
            return True

    _runtime.kick = _runtime.alarm = Platform  # type: ignore[assignment]
    with suppress(EOFError):  # the end of the platform
        while True:
            event = pipe.recv()
            try:
                (reaper if event == "reap" else worker).handler(event, invocation())
                pipe.send("ended")
            except Exception:  # noqa: BLE001 - Lambda repeats it
                pipe.send("failed")


def invocation() -> Any:  # noqa: ANN401 - a LambdaContext, as far as the functions look at it
    """Make the context of an invocation that begins now."""
    from aws_lambda_powertools.utilities.typing import LambdaContext

    context, ends = LambdaContext(), time.monotonic() + TIMEOUT
    facts = {"function_name": "soak", "memory_limit_in_mb": 256, "invoked_function_arn": "soak"}
    for name, value in (facts | {"aws_request_id": os.urandom(8).hex()}).items():
        setattr(context, f"_{name}", value)
    left = lambda: int(1000 * (ends - time.monotonic()))  # noqa: E731 - in place of a method
    context.get_remaining_time_in_millis = left  # type: ignore[method-assign]
    return context


@dataclass
class Lambda:
    """Stand for the platform: as many invocations at a time as there are environments."""

    dsn: str
    counts: Counter[str] = field(default_factory=Counter)
    pids: dict[int, int] = field(default_factory=dict)  # by thread
    local: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        self.workers, self.reaper = ThreadPoolExecutor(WORKERS), ThreadPoolExecutor(1)

    def kick(self, queue: str, hop: int = 0) -> bool:
        """Invoke the worker asynchronously."""
        self.submit({"queue": queue, "hop": hop})
        return True

    def submit(self, event: object, after: float = 0, tries: int = 3) -> None:
        """Run an event after some seconds, up to three times."""
        if after:
            timer = threading.Timer(after, self.submit, (event, 0, tries))
            timer.daemon = True
            timer.start()
        else:
            with suppress(RuntimeError):  # it is being closed
                pool = self.reaper if event == "reap" else self.workers
                pool.submit(self.invoke, event, tries)

    def invoke(self, event: object, tries: int) -> None:
        """Run an event in this thread's environment, replaced if it has died."""
        process, pipe = getattr(self.local, "own", None) or self.start()
        try:
            pipe.send(event)
            while (answer := pipe.recv()) not in ("ended", "failed"):
                self.submit(*answer)
        except (EOFError, OSError):
            process.join()
            self.local.own, answer = None, "died"
        self.counts[answer] += 1
        if answer != "ended" and tries > 1:
            self.submit(event, 1, tries - 1)

    def start(self) -> tuple[Any, Pipe]:
        """Start an environment for this thread."""
        spawn, (ours, theirs) = multiprocessing.get_context("spawn"), multiprocessing.Pipe()
        process = spawn.Process(target=environment, args=(theirs, self.dsn), daemon=True)
        process.start()
        theirs.close()
        self.pids[threading.get_ident()] = process.pid or 0
        self.local.own = (process, ours)
        return process, ours

    def memory(self) -> float:
        """Return the megabytes of the largest environment."""
        pages = [0]
        for pid in list(self.pids.values()):
            with suppress(OSError):  # it has died
                pages.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]))
        return max(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


def insist(dsn: str, act: Callable[[psycopg.Connection[Any]], Any]) -> Any:  # noqa: ANN401
    """Return what is done on a connection, again and again while the server is away."""
    while True:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                return act(conn)
        except psycopg.OperationalError:
            time.sleep(0.2)


def look(dsn: str, query: str, **params: int) -> list[Any]:
    """Return what a query finds."""
    return list(insist(dsn, lambda conn: conn.execute(query.encode(), params or None).fetchall()))


def put_in(producer: Producer, first: int, conn: psycopg.Connection[Any]) -> None:
    """Enqueue one transaction's jobs, unless a COMMIT without an answer has."""
    numbers = range(first, min(first + BULK, JOBS))
    with producer.transaction(conn) as tx:
        note = "INSERT INTO batches VALUES (%s) ON CONFLICT DO NOTHING"
        if conn.execute(note, [first]).rowcount:
            tx.enqueue_many([NewJob("work", {"n": n, "does": planned(n)}) for n in numbers])


def produce(dsn: str, platform: Lambda) -> None:
    """Put everything in, in step with what is done, and wait until all of it is."""
    producer = Producer(platform)
    for first in range(0, JOBS, BULK):
        while look(dsn, LEFT)[0][0] > BACKLOG:
            time.sleep(0.2)
        insist(dsn, partial(put_in, producer, first))
    while look(dsn, LEFT)[0][0]:
        time.sleep(0.5)


def soak(server: Server) -> dict[str, Any]:
    """Run it all; return what the page is made of."""
    dsn, over, restarts, samples = server.dsn(), threading.Event(), list[float](), list[Any]()
    platform, began = Lambda(dsn), time.monotonic()

    def sample() -> None:
        [sizes] = look(dsn, SIZES)
        samples.append((time.monotonic() - began, *sizes, platform.memory()))

    def restart() -> None:
        restarts.append(time.monotonic() - began)
        server.restart("immediate")

    def every(seconds: float, act: Callable[[], object]) -> None:
        while not over.wait(seconds):
            act()

    look(dsn, "SELECT 1")
    insist(dsn, migrate)
    insist(dsn, lambda conn: conn.execute(TABLES))
    sample()
    acts = {RESTART: restart, SAMPLE: sample, REAP: partial(platform.submit, "reap")}
    threads = [threading.Thread(target=every, args=pair) for pair in acts.items()]
