"""From a commit to the start of its job's handler, step by step, through the deployed stack.

Beside each job, in the same run, an empty function is invoked in the same way: what the platform
takes by itself. `make bench-latency` prints the table and writes docs/benchmarks/latency.md.
"""

import io
import json
import os
import socket
import statistics
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from bench.machine import machine
from local.ministack import Cloud, ministack
from local.postgres import Server, postgres
from local.sam import RUNTIME, build_and_deploy
from pgq_core import LambdaKick, Producer
from pgq_core.db import Connection
from pgq_core.migrate import migrate
from pgq_core.producer import Wanted

PROBE = Path(__file__).with_name("latency_probe")
TABLE = Path(__file__).parents[1] / "docs" / "benchmarks" / "latency.md"
NEVER = "cron(0 0 1 1 ? *)"
WARM_UP = 10
SAMPLES = int(os.environ.get("SAMPLES", "200"))
PAUSE = 0.05  # s, for the emulator to put the process back among the idle ones

Readings = Mapping[str, int]

#: The steps, each with where it begins and ends. The invoke is the platform's, the others are ours.
STEPS = {
    "hook": ("committed", "invoke_begins"),
    "invoke": ("invoke_begins", "entered"),
    "start": ("entered", "connect_begins"),
    "connect": ("connect_begins", "connect_ends"),
    "claim": ("connect_ends", "claim_ends"),
    "handler": ("claim_ends", "started"),
}
OURS = [name for name in STEPS if name != "invoke"]


class TimedProducer(Producer):
    """Note when the commit is done and when the block ends."""

    committed: int = 0

    def _send(self, conn: Connection, wanted: Wanted) -> None:
        self.committed = time.time_ns()
        super()._send(conn, wanted)


@dataclass
class TimedClient:
    """Note when the call of AWS begins and ends."""

    inner: Any
    begins: int = 0
    ends: int = 0

    def invoke(self, **parameters: Any) -> Any:  # noqa: ANN401 - boto3's
        """Invoke."""
        self.begins = time.time_ns()
        answer = self.inner.invoke(**parameters)
        self.ends = time.time_ns()
        return answer


@dataclass(kw_only=True)
class Bench:
    """A deployed stack with clocks in it, and the application that enqueues."""

    cloud: Cloud
    conn: psycopg.Connection[Any]
    udp: socket.socket
    worker: str
    empty: str
    plain: Any = field(init=False)
    client: TimedClient = field(init=False)
    producer: TimedProducer = field(init=False)

    def __post_init__(self) -> None:
        """Make the clients, each with its connection."""
        self.plain = self.cloud.client("lambda")
        self.client = TimedClient(self.cloud.client("lambda"))
        self.producer = TimedProducer(LambdaKick(self.worker, client=self.client))

    def hear(self) -> dict[str, int]:
        """Return what a function says next."""
        heard: dict[str, int] = json.loads(self.udp.recv(10_000))
        return heard

    def job(self) -> Readings:
        """Commit a job and wait until its worker has ended; return the clocks' readings."""
        with self.producer.transaction(self.conn) as tx:
            tx.enqueue("note", {})
        over = time.time_ns()
        readings = self.hear()
        while "ended" not in self.hear():
            pass
        time.sleep(PAUSE)
        return readings | {
            "committed": self.producer.committed,
            "invoke_begins": self.client.begins,
            "invoke_returns": self.client.ends,
            "over": over,
        }

    def nothing(self) -> int:
        """Invoke the empty function; return the nanoseconds until it is entered."""
        begins = time.time_ns()
        answer = self.plain.invoke(
            FunctionName=self.empty, InvocationType="Event", Payload=b'{"queue": "default"}'
        )
        answer["Payload"].read()
        entered = self.hear()["entered"]
        time.sleep(PAUSE)
        return entered - begins

    def coalesced(self) -> int:
        """Commit a job while a kick is pending; return the nanoseconds of the hook."""
        self.client.begins = 0
        with self.producer.transaction(self.conn) as tx:
            tx.enqueue("note", {})
        over = time.time_ns()
        if self.client.begins:
            raise RuntimeError("invoked although a kick was pending")
        return over - self.producer.committed


def package(source: Path) -> bytes:
    """Zip one file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.write(source, source.name)
    return buffer.getvalue()


def deploy(cloud: Cloud, dsn: str, listener: str) -> tuple[str, str]:
    """Deploy the stack with the probe, and the empty function; return the functions' names."""
    outputs = build_and_deploy(
        cloud,
        stack="latency",
        tasks_folder=PROBE,
        parameters={
            "TasksModule": "latency_probe:tasks",
            "AppSettings": listener,
            "DatabaseUrl": dsn,
            "SweepSchedule": NEVER,
            "ReaperSchedule": NEVER,
        },
    )
    client = cloud.client("lambda")
    worker = outputs["WorkerName"]
    client.update_function_configuration(FunctionName=worker, Handler="latency_probe.handler")
    role = client.get_function_configuration(FunctionName=worker)["Role"]
    client.create_function(
        FunctionName="latency-empty",
        Runtime=RUNTIME,
        Handler="empty.handler",
        Role=role,
        Code={"ZipFile": package(PROBE / "empty.py")},
        Environment={"Variables": {"APP_SETTINGS": listener}},
    )
    return worker, "latency-empty"


@contextmanager
def bench(server: Server) -> Iterator[Bench]:
    """Deploy everything, and take it away at the end."""
    server.create("latency")
    dsn = server.dsn("latency")
    with (
        ministack() as cloud,
        psycopg.connect(dsn, autocommit=True) as conn,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(30)
        migrate(conn)
        worker, empty = deploy(cloud, dsn, f"127.0.0.1:{udp.getsockname()[1]}")
        yield Bench(cloud=cloud, conn=conn, udp=udp, worker=worker, empty=empty)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Milliseconds of one step: at the median, of 95 and of 99 in a hundred."""

    p50: float
    p95: float
    p99: float


def row(nanoseconds: list[int]) -> Row:
    """Sort them out."""
    cuts = statistics.quantiles((one / 1e6 for one in nanoseconds), n=100, method="inclusive")
    return Row(p50=cuts[49], p95=cuts[94], p99=cuts[98])


def measure(on: Bench) -> dict[str, Row]:
    """Take the samples, a job and an empty invoke by turns."""
    for _ in range(WARM_UP):
        on.job()
        on.nothing()
    jobs, empty = [], []
    for _ in range(SAMPLES):
        jobs.append(on.job())
        empty.append(on.nothing())
    on.conn.execute("UPDATE pgq_core.queues SET kick_requested_at = now()")
    quiet = [on.coalesced() for _ in range(SAMPLES // 10)]

    def flush() -> int:
        begins = time.time_ns()
        on.conn.execute("UPDATE pgq_core.queues SET alarm_at = now()")
        return time.time_ns() - begins

    flushes = [flush() for _ in range(SAMPLES // 10)]

    def between(first: str, last: str) -> list[int]:
        return [one[last] - one[first] for one in jobs]

    steps = {name: between(*ends) for name, ends in STEPS.items()}
    rows = {name: row(spans) for name, spans in steps.items()}
    rows["commit to handler"] = row(between("committed", "started"))
    rows["of it ours"] = row([sum(spans) for spans in zip(*map(steps.get, OURS), strict=True)])
    rows["empty function"] = row(empty)
    in_hook = [
        one["over"] - one["committed"] - (one["invoke_returns"] - one["invoke_begins"])
        for one in jobs
    ]
    rows["hook, without the call"] = row(in_hook)
    rows["hook, a kick pending"] = row(quiet)
    rows["one commit that flushes"] = row(flushes)
    return rows


PAGE = """# From a commit to its handler

`make bench-latency`: {samples} jobs, one after the other, through the deployed stack on the
emulator, warm; by turns with asynchronous invokes of a function that does nothing. Milliseconds, on
loopback, with a Postgres that flushes to disk.

{where}.

| step | p50 | p95 | p99 |
|---|---|---|---|
{table}

- **hook**: from the end of the COMMIT to the call of Lambda; the mark is read and set.
- **invoke**: from the call to the first line of the function: the platform's; all others are ours.
- **start**: logs, settings, the event. **connect**: a new connection, each time.
- **claim**: schema check, wake, reclaim, cron, cap, claim. **handler**: from there to the handler.
- Three of our statements are commits that flush: the mark is set, cleared, and the job claimed.
- The emulator's invoke crosses loopback only. What AWS adds it adds to both functions, so that the
  ratio falls there and our own share stays; AWS itself was not measured.

| goal, at the median | limit | seen | |
|---|---|---|---|
{goals}
"""


def verdict(goal: str, limit: str, seen: float) -> str:
    """Say whether a goal was met."""
    number, unit = limit.split()
    met = "met" if seen <= float(number) else "missed"
    return f"| {goal} | {limit} | {seen:.1f} {unit} | {met} |"


def page(rows: Mapping[str, Row], where: str) -> str:
    """Write the page of the documents."""
    table = (f"| {name} | {r.p50:.1f} | {r.p95:.1f} | {r.p99:.1f} |" for name, r in rows.items())
    times = rows["commit to handler"].p50 / rows["empty function"].p50
    goals = (
        verdict("commit to handler, compared with an empty invoke", "2 times", times),
        verdict("our own share", "15 ms", rows["of it ours"].p50),
        verdict("the hook, without the call", "3 ms", rows["hook, without the call"].p50),
        verdict("calls while a kick is pending", "0 calls", 0),  # else `coalesced` had raised
    )
    return PAGE.format(samples=SAMPLES, where=where, table="\n".join(table), goals="\n".join(goals))


def main() -> None:
    """Measure, print the page and write it."""
    with postgres(durable=True) as server, bench(server) as on:
        rows = measure(on)
        [(version,)] = on.conn.execute("SHOW server_version").fetchall()
        text = page(rows, f"{machine(version)}, MiniStack")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
