"""A long run through the functions' handlers: failures, crashes, restarts of the server.

`make soak` runs 1,000,000 jobs (JOBS= for another number) and writes docs/benchmarks/soak.md. What
stands for Lambda are processes, one invocation at a time each: one that dies is replaced and its
event repeated, as Lambda does, after seconds instead of minutes. Kicks and alarms go to it too.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psycopg

from bench.machine import machine
from local.postgres import Server, postgres
from pgq_core import Context, Discard, Job, NewJob, Producer, Tasks, migrate

JOBS = int(os.environ.get("JOBS", "1000000"))
WORKERS, BATCH, TIMEOUT = 2, 100, 30  # processes; jobs of a claim; s of an invocation
BULK, BACKLOG = 1000, 5000  # jobs of a transaction; unfinished ones, above which it waits
RESTART, SAMPLE, REAP = 120.0, 5.0, 15.0  # s between two
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
TABLES = """
CREATE TABLE batches (first int PRIMARY KEY);
CREATE TABLE runs (n int, attempt int);
CREATE TABLE effects (n int PRIMARY KEY);
"""
UNFINISHED = "SELECT count(*) FROM pgq_core.jobs WHERE status IN ('queued', 'running')"
SIZES = """
SELECT pg_table_size('pgq_core.jobs'), pg_indexes_size('pgq_core.jobs'),
       (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'pgq_core.jobs'::regclass),
       (SELECT count(*) FROM runs)
"""
#: Of the last state: what must be 0.
WRONG = """
SELECT (SELECT count(*) FROM (SELECT unnest(%(all)s::int[]) EXCEPT SELECT n FROM runs) AS missing),
       (SELECT count(*) FROM (SELECT unnest(%(exact)s::int[]) EXCEPT SELECT n FROM effects) AS no),
       (SELECT count(*) FROM pgq_core.jobs WHERE status NOT IN ('done', 'failed')),
       abs((SELECT count(*) FROM pgq_core.jobs WHERE status = 'failed') - %(discarded)s)
"""
NAMES = ("never run", "an effect is missing", "not finished", "failed otherwise than planned")

tasks = Tasks()


@cache
def session() -> psycopg.Connection[Any]:
    """Open the handler's own connection, kept by the process."""
    return psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)


def note(n: int, attempt: int) -> None:
    """Note a run, on a connection that a restart may have cut."""
    try:
        session().execute("INSERT INTO runs VALUES (%s, %s)", [n, attempt])
    except psycopg.OperationalError:
        session.cache_clear()
        raise


@tasks.handler("work", timeout=timedelta(seconds=5), backoff=lambda _: timedelta(seconds=1))
def work(job: Job, ctx: Context) -> None:
    """Do as planned: kill the process once, fail once, be given up, or succeed."""
    n, does = job.payload["n"], job.payload["does"]
    note(n, job.attempt)
    if does == "crash" and job.crashed == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if does == "fail" and job.attempt == 1:
        raise ValueError(f"{n} fails the first time")
    if does == "discard":
        raise Discard("planned")
    if does == "effect":
        with ctx.transaction() as conn:
            conn.execute("INSERT INTO effects VALUES (%s)", [n])


def planned(n: int) -> str:
    """Return what the job of a number does."""
    return next((does for does, (of, left) in PLAN.items() if n % of == left), "")


def environment(pipe: Pipe, dsn: str) -> None:
    """Be one execution environment: take an event, run the handler, say how it ended."""
    os.environ.update(ENV, DATABASE_URL=dsn)
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - metrics; for as long as it lives
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from functions import _runtime, reaper, worker

    class Invocation(LambdaContext):
        def __init__(self) -> None:
            self._function_name, self._memory_limit_in_mb = "soak-worker", 256
            self._invoked_function_arn = ENV["PGQ_WORKER_ARN"]
            self._aws_request_id = os.urandom(8).hex()
            self.ends = time.monotonic() + TIMEOUT

        def get_remaining_time_in_millis(self) -> int:  # type: ignore[override]
            return int(1000 * (self.ends - time.monotonic()))

    class Platform:
        def kick(self, queue: str, hop: int = 0) -> bool:
            pipe.send(({"queue": queue, "hop": hop}, 0.0))
            return True

        def arm(self, queue: str, at: datetime) -> bool:
            distance = max(0.0, (at - datetime.now(UTC)).total_seconds())
            pipe.send(({"queue": queue, "alarm": at.isoformat()}, distance))
            return True

    _runtime.kick = _runtime.alarm = cache(Platform)  # type: ignore[assignment]
    with suppress(EOFError):  # the end of the platform
        serve(pipe, worker.handler, reaper.handler, Invocation)


def serve(pipe: Pipe, work: Any, reap: Any, invocation: Any) -> None:  # noqa: ANN401 - functions
    """Take one event after the other."""
    while True:
        event = pipe.recv()
        try:
            (reap if event == "reap" else work)(event, invocation())
            pipe.send("ended")
        except Exception:  # noqa: BLE001 - Lambda repeats it
            pipe.send("failed")


@dataclass
class Lambda:
    """Stand for the platform: as many invocations at a time as there are environments."""

    dsn: str
    deaths: int = 0
    repeated: int = 0
    pids: dict[int, int] = field(default_factory=dict)  # by thread
    local: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(WORKERS)
        self.closed = False

    def kick(self, queue: str, hop: int = 0) -> bool:
        """Invoke the worker asynchronously."""
        self.submit({"queue": queue, "hop": hop})
        return True

    def submit(self, event: object, after: float = 0, tries: int = 3) -> None:
        """Run an event after some seconds, up to three times."""
        if self.closed:
            return
        if after:
            timer = threading.Timer(after, self.submit, (event, 0, tries))
            timer.daemon = True
            timer.start()
        else:
            with suppress(RuntimeError):  # it is being closed
                self.pool.submit(self.invoke, event, tries)

    def invoke(self, event: object, tries: int) -> None:
        """Run an event in this thread's environment, replaced if it has died."""
        process, pipe = getattr(self.local, "own", None) or self.start()
        try:
            pipe.send(event)
            while (answer := pipe.recv()) not in ("ended", "failed"):
                self.submit(*answer)
            again = answer == "failed"
        except (EOFError, OSError):
            process.join()
            self.local.own, again = None, True
            self.deaths += 1
        if again and tries > 1:
            self.repeated += 1
            self.submit(event, 1, tries - 1)

    def start(self) -> tuple[Any, Pipe]:
        """Start an environment for this thread."""
        ours, theirs = multiprocessing.Pipe()
        forks = multiprocessing.get_context("spawn")
        process = forks.Process(target=environment, args=(theirs, self.dsn), daemon=True)
        process.start()
        theirs.close()
        self.pids[threading.get_ident()] = process.pid or 0
        self.local.own = (process, ours)
        return process, ours


def connected(dsn: str) -> psycopg.Connection[Any]:
    """Connect, as soon as the server is there."""
    while True:
        try:
            return psycopg.connect(dsn, autocommit=True)
        except psycopg.OperationalError:
            time.sleep(0.2)


def put_in(dsn: str, producer: Producer, first: int) -> None:
    """Enqueue one transaction's jobs; whether the COMMIT was done, its own table says."""
    numbers = range(first, min(first + BULK, JOBS))
    jobs = [NewJob("work", {"n": n, "does": planned(n)}) for n in numbers]
    while True:
        with connected(dsn) as conn, suppress(psycopg.OperationalError):
            if conn.execute("SELECT FROM batches WHERE first = %s", [first]).fetchone() is not None:
                producer.kick(conn, ["default"])
                return
            with producer.transaction(conn) as tx:
                conn.execute("INSERT INTO batches VALUES (%s)", [first])
                tx.enqueue_many(jobs)


def unfinished(dsn: str) -> int:
    """Count them."""
    while True:
        with connected(dsn) as conn, suppress(psycopg.OperationalError):
            return int(conn.execute(UNFINISHED).fetchone()[0])  # type: ignore[index]


def produce(dsn: str, producer: Producer) -> None:
    """Put everything in, in step with what is done, and wait until all of it is."""
    for first in range(0, JOBS, BULK):
        while unfinished(dsn) > BACKLOG:
            time.sleep(0.2)
        put_in(dsn, producer, first)
    while unfinished(dsn):
        time.sleep(0.5)


Sample = tuple[float, int, int, int, int, int]  # s, runs, table, indexes, dead rows, memory


def memory(platform: Lambda) -> int:
    """Return the kilobytes of the largest environment."""
    sizes = [0]
    for pid in platform.pids.values():
        with suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            sizes.append(pages * os.sysconf("SC_PAGE_SIZE") // 1024)
    return max(sizes)


@contextmanager
def every(seconds: float, act: Any) -> Iterator[None]:  # noqa: ANN401 - whatever it returns
    """Do something again and again, beside the block."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def sample(dsn: str, platform: Lambda, began: float, into: list[Sample]) -> None:
    """Look at the sizes."""
    with connected(dsn) as conn, suppress(psycopg.OperationalError):
        [(table, indexes, dead, runs)] = conn.execute(SIZES).fetchall()
        into.append((time.monotonic() - began, runs, table, indexes, dead, memory(platform)))


def soak(server: Server) -> tuple[list[Sample], Lambda, dict[str, int], int]:
    """Run it all; return the samples, the platform, what is wrong, and the restarts."""
    dsn, restarts, samples = server.dsn(), 0, list[Sample]()

    def restart() -> None:
        nonlocal restarts
        restarts += 1
        server.restart("immediate")

    with connected(dsn) as conn:
        migrate(conn)
        conn.execute(TABLES)
    platform, began = Lambda(dsn), time.monotonic()
    look = partial(sample, dsn, platform, began, samples)
    with every(RESTART, restart), every(SAMPLE, look), every(REAP, lambda: platform.submit("reap")):
        produce(dsn, Producer(platform))
    look()
    platform.closed = True
    platform.pool.shutdown(cancel_futures=True)
    numbers = range(JOBS)
    exact = [n for n in numbers if planned(n) == "effect"]
    discarded = sum(planned(n) == "discard" for n in numbers)
    asked = {"all": list(numbers), "exact": exact, "discarded": discarded}
    with connected(dsn) as conn:
        [found] = conn.execute(WRONG.encode(), asked).fetchall()
        [(runs,)] = conn.execute("SELECT count(*) - count(DISTINCT n) FROM runs").fetchall()
    wrong = dict(zip(NAMES, found, strict=True))
    return samples, platform, wrong | {"runs more than jobs": runs}, restarts


TEXT = """# Soak

`make soak`{given}: {jobs:,} jobs through the functions' handlers, {seconds:,.0f} s. {machine}.

One job in {fails} fails once, one in {discarded:,} is given up by its handler, one in {crashes:,}
kills its process once, one in {exact} writes its effect with its completion in
`ctx.transaction()`. {workers} environments stand for Lambda, an invocation of {timeout} s at a time
each, claims of {batch}; {deaths} of them died, and {repeated} invocations were repeated. The server
was stopped at once and started again {restarts} times, every {restart:.0f} s. The reaper ran every
{reap:.0f} s and removed what was done. Not AWS: kicks, alarms and repeats are this machine's, in
seconds.

| what must be 0 | seen |
|---|---|
{wrong}

{extra:,} runs came on top of one for each job: the planned failures, and what a crash or a restart
left unsettled.

| s | runs | jobs/s | table, MB | indexes, MB | dead rows | largest environment, MB |
|---|---|---|---|---|---|---|
{rows}
"""


def page(samples: list[Sample], platform: Lambda, wrong: dict[str, int], restarts: int) -> str:
    """Write the report: a dozen of the samples, and the counts."""
    extra = wrong.pop("runs more than jobs")
    thin = samples[:: max(1, len(samples) // 12)]
    rows = []
    for before, (at, runs, table, indexes, dead, kilobytes) in pairwise(thin):
        rate = (runs - before[1]) / (at - before[0])
        sizes = f"{table / 1e6:.1f} | {indexes / 1e6:.1f} | {dead:,} | {kilobytes / 1024:.0f}"
        rows.append(f"| {at:.0f} | {runs:,} | {rate:,.0f} | {sizes} |")
    with postgres() as server, connected(server.dsn()) as conn:
        [(version,)] = conn.execute("SHOW server_version").fetchall()
    return TEXT.format(
        given="" if "JOBS" not in os.environ else f" with `JOBS={JOBS}`",
        jobs=JOBS,
        seconds=samples[-1][0],
        machine=machine(version),
        fails=PLAN["fail"][0],
        discarded=PLAN["discard"][0],
        crashes=PLAN["crash"][0],
        exact=PLAN["effect"][0],
        workers=WORKERS,
        timeout=TIMEOUT,
        batch=BATCH,
        deaths=platform.deaths,
        repeated=platform.repeated,
        restarts=restarts,
        restart=RESTART,
        reap=REAP,
        wrong="\n".join(f"| {name} | {count} |" for name, count in wrong.items()),
        extra=extra,
        rows="\n".join(rows),
    )


def main() -> int:
    """Run, print and write the page; 1 if anything is wrong."""
    with postgres() as server:
        samples, platform, wrong, restarts = soak(server)
    bad = any(count for name, count in wrong.items() if name in NAMES)
    text = page(samples, platform, wrong, restarts)
    PAGE.write_text(text)
    sys.stdout.write(text)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
