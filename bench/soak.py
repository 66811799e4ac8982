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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
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
    """Put everything in, in step with what is done, so that the backlog is bounded."""
    producer = Producer(platform)
    for first in range(0, JOBS, BULK):
        while look(dsn, LEFT)[0][0] > BACKLOG:
            time.sleep(0.2)
        insist(dsn, partial(put_in, producer, first))


@contextmanager
def every(acts: dict[float, Callable[[], object]]) -> Iterator[None]:
    """Do each act again and again, after its number of seconds, beside the block."""
    over = threading.Event()

    def loop(seconds: float, act: Callable[[], object]) -> None:
        while not over.wait(seconds):
            act()

    threads = [threading.Thread(target=loop, args=pair) for pair in acts.items()]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def soak(server: Server) -> dict[str, Any]:
    """Run it all; return what the page is made of."""
    dsn, restarts, samples = server.dsn(), list[float](), list[Any]()
    platform, began = Lambda(dsn), time.monotonic()

    def sample() -> None:
        [sizes] = look(dsn, SIZES)
        samples.append((time.monotonic() - began, *sizes, platform.memory()))

    def restart() -> None:
        restarts.append(time.monotonic() - began)
        server.restart("immediate")

    insist(dsn, migrate)
    insist(dsn, lambda conn: conn.execute(TABLES))
    sample()
    with every({RESTART: restart, SAMPLE: sample, REAP: partial(platform.submit, "reap")}):
        produce(dsn, platform)
        fed = time.monotonic() - began
        while look(dsn, LEFT)[0][0]:
            time.sleep(0.5)
    sample()
    for pool in (platform.workers, platform.reaper):
        pool.shutdown(cancel_futures=True)
    facts = {"samples": samples, "fed": fed, "restarts": len(restarts), "counts": platform.counts}
    return facts | {"wrong": wrong(dsn), "reasons": look(dsn, REASONS), "spent": look(dsn, SPENT)}


def wrong(dsn: str) -> dict[str, int]:
    """Count what must not be."""
    plan = Counter(map(planned, range(JOBS)))
    params = {"jobs": JOBS, "effect": plan["effect"], "mishaps": plan["crash"] + plan["fail"]}
    return {name: look(dsn, query, **params)[0][0] for name, query in WRONG.items()}


TEXT = """# Soak

`make soak`{given}: {jobs:,} jobs through the functions' handlers, in {seconds:,.0f} s.
{machine}.

One job in {fail} fails once, one in {discard:,} is given up by its handler, one in {crash:,}
kills its process once, one in {effect} writes its effect with its completion in
`ctx.transaction()`. {workers} environments stand for Lambda's worker and one for its reaper, each
with one invocation of {timeout} s at a time; claims of {batch}. {died} invocations died and
{failed} failed, of {invocations:,}; each was repeated after a second. The server was stopped at
once and started again {restarts} times, every {restart:.0f} s. The reaper ran every {reap:.0f} s
and removed what was done. The producer waited while more than {backlog:,} jobs were unfinished.
Not AWS: kicks, alarms and repeats are this machine's; a job that failed came back after a second.
The server does not flush to disk, since the machine itself stays up.

| what must be 0 | seen |
|---|---|
{wrong}
{reasons}
Attempts that the jobs had spent when they ended: {spent}. Two are a planned failure; what is
more, a lease that ended: with the process that held it, or in a restart.

| s | jobs ended | per minute | table, MB | indexes, MB | dead rows | largest environment, MB |
|---|---|---|---|---|---|---|
{rows}

The indexes grow with each stop at once: the server forgets which of their pages are free, until the
next vacuum, and makes new ones meanwhile. With no stops those of waiting, running and finished jobs
keep their size; the primary key grows by the pages of what is kept (failed jobs, 30 days).

Sizes are the largest seen since the row before, each {sample:.0f} s. The last job was put in
after {fed:,.0f} s; what came then are jobs that wait for the end of a lease and for the backoff
after a crash. A million jobs at this pace take {million:.0f} minutes.
"""


def table(samples: list[Any]) -> str:
    """Return the rows: the largest sizes of each stretch."""
    step = -(-(len(samples) - 1) // ROWS)
    lines = []
    for first in range(0, len(samples) - 1, step):
        part = samples[first : first + step + 1]
        (start, before, *_), (at, ended, *_) = part[0], part[-1]
        heap, index, dead, memory = (max(one[place] for one in part[1:]) for place in range(2, 6))
        sizes = f"{heap:.1f} | {index:.1f} | {dead:,} | {memory:.0f}"
        lines.append(
            f"| {at:.0f} | {ended:,} | {60 * (ended - before) / (at - start):,.0f} | {sizes} |"
        )
    return "\n".join(lines)


def page(facts: dict[str, Any], version: str) -> str:
    """Write the report."""
    seconds, counts = facts["samples"][-1][0], facts["counts"]
    why = "".join(
        f"\n- {count} times `{' '.join(error.split())}`" for error, count in facts["reasons"]
    )
    settings = {"workers": WORKERS, "timeout": TIMEOUT, "batch": BATCH, "backlog": BACKLOG}
    periods = {"restart": RESTART, "reap": REAP, "sample": SAMPLE}
    return TEXT.format(
        **{does: of for does, (of, _) in PLAN.items()} | settings | periods,
        given=f" with `JOBS={JOBS}`" if "JOBS" in os.environ else "",
        jobs=JOBS,
        seconds=seconds,
        machine=machine(version),
        died=counts["died"],
        failed=counts["failed"],
        invocations=counts.total(),
        restarts=facts["restarts"],
        wrong="\n".join(f"| {name} | {count} |" for name, count in facts["wrong"].items()),
        reasons=f"\nEnded otherwise, by their last errors:\n{why}\n" if why else "",
        spent=", ".join(f"{spent}: {count:,}" for spent, count in facts["spent"]),
        rows=table(facts["samples"]),
        fed=facts["fed"],
        million=(facts["fed"] * 1e6 / JOBS + seconds - facts["fed"]) / 60,
    )


def main() -> int:
    """Run, print and write the page; 1 if anything is wrong."""
    with postgres() as server:
        facts = soak(server)
        [(version,)] = look(server.dsn(), "SHOW server_version")
    text = page(facts, version)
    PAGE.write_text(text)
    sys.stdout.write(text)
    return int(any(facts["wrong"].values()))


if __name__ == "__main__":
    sys.exit(main())
