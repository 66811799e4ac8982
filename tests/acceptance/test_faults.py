"""Whatever is lost, refused or killed on the way, each due job starts within its bound.

The bounds are those of docs/operations.md. What would take minutes is aged: the test moves an
instant in the database or sends the event that a schedule would send, and looks who acts on it.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.signups.stage import Stack
from local.ministack import Cloud, ministack
from local.postgres import Server
from local.sam import build_and_deploy
from pgq_core import Kick, LambdaKick, NewJob, Producer, queues, schedules
from tests.acceptance.conftest import NEVER, rest, wait_for

# Their own stack on their own emulator, since they break it: another process may have it.
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("faults"),
]

SOON = 30  # s: an invocation, cold, on a machine several times too busy
TIMEOUT = 15  # s, the worker's
ALARMS = "faults-alarms"  # the stack's schedule group
QUOTED = """{"text": "a b 'c' = d"}"""
TICK = 10  # s, the emulator's look at its schedules
BURST, THREADS = 1_000, 8
BACKLOG, HOPS = 2_000, 16


@dataclass
class FaultyKick:
    """A kick that is accepted, and then arrives as often and as late as the test says."""

    inner: Kick
    times: int = 1
    held: list[str] = field(default_factory=list)

    def kick(self, queue: str, hop: int = 0) -> bool:
        assert hop == 0
        self.held.append(queue)
        for _ in range(self.times):
            self.inner.kick(queue)
        return True


@dataclass(kw_only=True)
class Faults:
    """The deployed stack, an application that enqueues, and hands on both."""

    stack: Stack
    dsn: str
    conn: psycopg.Connection[Any]
    kick: LambdaKick
    schedule: dict[str, Any]  # the sweep's

    def put(
        self,
        queue: str,
        *seconds: float,
        kick: Kick | None = None,
        task: str = "nap",
        **options: Any,
    ) -> None:
        """Commit a job for each nap, and kick."""
        with Producer(kick or self.kick).transaction(self.conn) as tx:
            for nap in seconds:
                tx.enqueue(task, {"seconds": nap}, queue=queue, **options)

    def value(self, query: str, *params: object) -> Any:
        row = self.conn.execute(query, params).fetchone()
        return row[0] if row else None

    def count(self, queue: str, status: str) -> int:
        query = "SELECT count(*) FROM pgq_core.jobs WHERE queue = %s AND status = %s"
        return int(self.value(query, queue, status))

    def done(self, queue: str, jobs: int, *, seconds: float = SOON) -> None:
        """Wait until so many jobs are done."""
        wait_for(lambda: self.count(queue, "done") == jobs, seconds=seconds)

    def tries(self, queue: str) -> set[int]:
        """How often the queue's jobs were started."""
        query = "SELECT attempts - released FROM pgq_core.jobs WHERE queue = %s"
        return {tries for (tries,) in self.conn.execute(query, [queue])}

    def pass_time(self, queue: str, seconds: float) -> None:
        """Let everything about a queue be that much older."""
        gone = timedelta(seconds=seconds)
        self.conn.execute(
            "UPDATE pgq_core.queues SET kick_requested_at = kick_requested_at - %s,"
            " alarm_at = alarm_at - %s WHERE name = %s",
            [gone, gone, queue],
        )
        self.conn.execute(
            "UPDATE pgq_core.jobs SET run_at = run_at - %s, locked_until = locked_until - %s"
            " WHERE queue = %s",
            [gone, gone, queue],
        )

    def alarm(self, queue: str) -> Any:
        return self.value("SELECT alarm_at FROM pgq_core.queues WHERE name = %s", queue)

    def seconds_to(self, queue: str) -> float:
        """How far off the queue's noted alarm is."""
        query = "SELECT extract(epoch FROM alarm_at - now()) FROM pgq_core.queues WHERE name = %s"
        return float(self.value(query, queue) or 0)

    def sweep(self) -> None:
        self.stack.invoke("WorkerName", {"queue": "*"})

    def worker(self, call: str, **parameters: Any) -> None:
        """Call Lambda about the worker."""
        client = self.stack.cloud.client("lambda")
        getattr(client, call)(FunctionName=self.stack.outputs["WorkerName"], **parameters)

    def lines(self, text: str) -> int:
        """Count the lines of the worker's log with *text*; an invocation's come when it ends."""
        group = f"/aws/lambda/{self.stack.outputs['WorkerName']}"
        found = self.stack.cloud.client("logs").filter_log_events(
            logGroupName=group,
            filterPattern=f'"{text}"',  # the emulator shows 10,000 lines and no more
        )
        return len(found["events"])

    def invocations(self) -> int:
        return self.lines("REPORT RequestId")

    def rest(self) -> None:
        """Wait until no worker is at work."""
        rest(self.conn)
        time.sleep(0.3)  # the last of their logs

    def kill(self) -> None:
        """Kill every process of the worker function, as no signal warns of it at AWS either."""
        for process in self.stack.cloud.processes(self.stack.outputs["WorkerName"]):
            os.kill(process, signal.SIGKILL)


def sweep_of(cloud: Cloud) -> dict[str, Any]:
    """Read the stack's own schedule of the sweep, while nobody has removed its group."""
    scheduler = cloud.client("scheduler")
    found = [
        scheduler.get_schedule(Name=one["Name"], GroupName=ALARMS)
        for one in scheduler.list_schedules(GroupName=ALARMS)["Schedules"]
    ]
    [sweep] = [one for one in found if one["Target"].get("Input") == '{"queue": "*"}']
    return dict(sweep)


@pytest.fixture(scope="module")
def faults(server: Server) -> Iterator[Faults]:
    server.create("faults")
    dsn = server.dsn("faults")
    with ministack() as cloud, psycopg.connect(dsn, autocommit=True) as conn:
        outputs = build_and_deploy(
            cloud,
            stack="faults",
            tasks_folder=Path(__file__).with_name("napping"),
            parameters={
                "TasksModule": "napping:tasks",
                "DatabaseUrl": dsn,
                "AppSettings": QUOTED,
                "WorkerTimeout": str(TIMEOUT),
                "ConnectTimeout": "5",
                "WaitInPlace": "0",  # a worker that waits would be in the way of the others' tests
                "SweepSchedule": NEVER,
                "ReaperSchedule": NEVER,
            },
        )
        stack = Stack(cloud=cloud, outputs=outputs)
        stack.invoke("MigrateName")
        kick = LambdaKick(outputs["WorkerName"], client=cloud.client("lambda"))
        faults = Faults(stack=stack, dsn=dsn, conn=conn, kick=kick, schedule=sweep_of(cloud))
        wait_for(lambda: faults.alarm("yearly") is not None)  # the worker that migrate kicked
        yield faults


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    return str(request.node.name)


def test_the_functions_get_the_users_settings_as_they_are(faults: Faults) -> None:
    found = faults.stack.cloud.client("lambda").get_function_configuration(
        FunctionName="faults-worker"
    )
    variables = found["Environment"]["Variables"]
    assert (variables["PGQ_TASKS"], variables["APP_SETTINGS"]) == ("napping:tasks", QUOTED)


def test_a_migrate_arms_the_alarm_of_the_schedules_in_code(faults: Faults) -> None:
    """Bound: none, it kicks. The mark is taken away, as another test removes each alarm."""
    faults.conn.execute("DELETE FROM pgq_core.queues WHERE name = 'yearly'")
    assert faults.stack.invoke("MigrateName") == []
    [yearly] = schedules.find(faults.conn)
    at = f"at({yearly.next_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S})"
    scheduler = faults.stack.cloud.client("scheduler")

    def armed() -> list[str]:
        found = scheduler.list_schedules(GroupName=ALARMS)["Schedules"]
        names = [one["Name"] for one in found]
        read = [scheduler.get_schedule(GroupName=ALARMS, Name=name) for name in names]
        return [one["ScheduleExpression"] for one in read]

    wait_for(lambda: at in armed())


def test_a_lost_kick_costs_until_the_next_commit(faults: Faults, queue: str) -> None:
    """Bound: the first commit that comes 5 s later or more, else the next alarm or sweep."""
    lost = FaultyKick(faults.kick, times=0)
    faults.put(queue, 0, kick=lost)
    faults.put(queue, 0)  # coalesced with the one that was lost
    assert faults.count(queue, "queued") == 2
    faults.pass_time(queue, 5)
    faults.put(queue, 0)
    faults.done(queue, 3)


def test_hook_08_the_schedule_itself_starts_what_no_kick_did(faults: Faults, queue: str) -> None:
    """Bound: the sweep's period. This is the stack's own schedule, but for its time."""
    assert faults.schedule["State"] == "ENABLED"
    faults.put(queue, 0, kick=FaultyKick(faults.kick, times=0))
    faults.stack.cloud.client("scheduler").create_schedule(
        Name="sweep-now",
        GroupName=ALARMS,
        ScheduleExpression=f"at({datetime.now(UTC):%Y-%m-%dT%H:%M:%S})",
        FlexibleTimeWindow=faults.schedule["FlexibleTimeWindow"],
        Target=faults.schedule["Target"],
        ActionAfterCompletion="DELETE",
    )
    faults.done(queue, 1, seconds=SOON + TICK)


def test_hook_03_a_doubled_kick_costs_an_empty_claim(faults: Faults, queue: str) -> None:
    """Bound: none, it starts at once; and runs once."""
    before = faults.invocations()
    faults.put(queue, *[0.05] * 5, kick=FaultyKick(faults.kick, times=2))
    faults.done(queue, 5)
    wait_for(lambda: faults.invocations() >= before + 2)
    assert faults.tries(queue) == {1}


def test_a_kick_that_comes_minutes_late_holds_up_nobody_for_more_than_5_s(
    faults: Faults, queue: str
) -> None:
    """Bound: the next commit 5 s later; what the late one finds done stays done."""
    late = FaultyKick(faults.kick, times=0)
    faults.put(queue, 0, kick=late)
    faults.pass_time(queue, 180)
    faults.put(queue, 0)
    faults.done(queue, 2)
    before = faults.invocations()
    for held in late.held:
        faults.kick.kick(held)
    wait_for(lambda: faults.invocations() > before)
    assert faults.tries(queue) == {1}


def test_a_throttled_kick_is_made_up_for(faults: Faults, queue: str) -> None:
    """Bound: where the queue's own worker was in the way, the end of its batch; for another queue
    the next commit 5 s later, else the sweep. (At AWS the event waits; here it is lost.)"""
    other = f"{queue} too"
    faults.worker("put_function_event_invoke_config", MaximumRetryAttempts=0)
    faults.put(queue, 2.5, task="sleep")
    wait_for(lambda: faults.count(queue, "running") == 1)
    faults.worker("put_function_concurrency", ReservedConcurrentExecutions=1)
    try:
        for _ in range(3):
            faults.put(queue, 0)
        faults.put(other, 0)
        faults.done(queue, 4)
        faults.rest()
        assert faults.count(other, "queued") == 1
        faults.pass_time(other, 5)
        faults.put(other, 0)
        faults.done(other, 2)
    finally:
        faults.worker("delete_function_concurrency")
        faults.worker("put_function_event_invoke_config", MaximumRetryAttempts=2)


def test_lam_13_a_worker_killed_at_random_has_its_jobs_running_again(
    faults: Faults, queue: str
) -> None:
    """Bound: the end of the lease (the worker's timeout and 5 s), the alarm's lateness (60 s; 130 s
    where the time left allows no waiting) and the backoff (20 s after the first attempt)."""
    faults.put(queue, *[0.3] * 10, task="sleep")
    wait_for(lambda: faults.count(queue, "done") >= 1)
    time.sleep(random.uniform(0, 1))  # noqa: S311 - in the middle of the batch
    faults.kill()
    assert faults.count(queue, "running") >= 1
    lease = faults.value("SELECT max(locked_until) FROM pgq_core.jobs WHERE queue = %s", queue)
    wait_for(lambda: faults.alarm(queue) is not None)  # by Lambda's own retry of the invocation
    assert faults.alarm(queue) <= lease
    assert faults.seconds_to(queue) <= TIMEOUT + 5
    for _ in range(2):  # the alarm of the lease's end, then that of the backoff
        faults.pass_time(queue, faults.seconds_to(queue) + 1)
        faults.stack.invoke(
            "WorkerName", {"queue": queue, "alarm": faults.alarm(queue).isoformat()}
        )
    faults.done(queue, 10)
    assert faults.tries(queue) == {1, 2}


def test_refused_alarms_are_made_up_for(faults: Faults, queue: str) -> None:
    """Bound: the first commit to its queue that comes 5 minutes later or more, else the sweep."""
    faults.stack.cloud.client("scheduler").delete_schedule_group(Name=ALARMS)
    try:
        faults.put(queue, 0, delay=timedelta(minutes=10))
        wait_for(lambda: 0 < faults.seconds_to(queue) <= 300)  # not 600: it was refused
        faults.put(queue, 0, delay=timedelta(minutes=20))
        faults.pass_time(queue, 300)
        noted = faults.alarm(queue)
        faults.put(queue, 0, delay=timedelta(minutes=20))
        wait_for(lambda: faults.alarm(queue) > noted)  # kicked, and tried again
    finally:
        faults.stack.cloud.client("scheduler").create_schedule_group(Name=ALARMS)
    faults.pass_time(queue, 1_200)
    faults.sweep()
    faults.done(queue, 3)


def commits(faults: Faults, queue: str, producer: Producer, pause: float) -> None:
    """Be one of the application's processes."""
    with psycopg.connect(faults.dsn, autocommit=True) as conn:
        for _ in range(BURST // THREADS):
            with producer.transaction(conn) as tx:
                tx.enqueue("nap", {}, queue=queue)
            time.sleep(pause)


@pytest.fixture
def marks(faults: Faults) -> Iterator[None]:
    """Note each time that a pending kick is set or cleared."""
    faults.conn.execute(
        """
        CREATE TABLE marks (at timestamptz DEFAULT clock_timestamp(), pending boolean);
        CREATE FUNCTION note_mark() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO marks (pending) VALUES (NEW.kick_requested_at IS NOT NULL);
            RETURN NULL;
        END $$;
        CREATE TRIGGER note_mark AFTER INSERT OR UPDATE OF kick_requested_at ON pgq_core.queues
        FOR EACH ROW EXECUTE FUNCTION note_mark();
        """
    )
    yield
    faults.conn.execute("DROP TABLE marks; DROP FUNCTION note_mark CASCADE")


START_LATENCY = """
    SELECT extract(epoch FROM avg(at - set_at))::float8
    FROM (SELECT at, pending, lag(at) OVER (ORDER BY at) AS set_at,
                 lag(pending) OVER (ORDER BY at) AS was_pending FROM marks) AS pairs
    WHERE was_pending AND NOT pending
"""


@pytest.mark.usefixtures("marks")
@pytest.mark.parametrize("pause", [0, 0.03])
def test_hook_06_a_burst_from_cold_costs_few_invocations(
    faults: Faults, queue: str, pause: float
) -> None:
    """Bound: its length by the start latency, and the queue's max_workers, and 3."""
    faults.rest()
    faults.kill()
    before, began = faults.invocations(), time.monotonic()
    producer = Producer(faults.kick)
    with ThreadPoolExecutor(THREADS) as pool:
        ends = [pool.submit(commits, faults, queue, producer, pause) for _ in range(THREADS)]
        for end in ends:
            end.result()
    length = time.monotonic() - began
    faults.done(queue, BURST, seconds=60)
    faults.rest()
    latency = faults.value(START_LATENCY)
    invocations = faults.invocations() - before
    said = f"{BURST} commits in {length:.1f} s, start latency {latency:.2f} s: {invocations}"
    print(said, "invocations", dict(producer.stats))  # noqa: T201 - by pytest -rP
    assert 1 <= invocations <= length / latency + 10 + 3, said
    assert producer.stats["failed"] == 0


def test_a_backlog_outlives_sixteen_hand_overs(faults: Faults, queue: str) -> None:
    """Bound: none but the work itself; no sweep is needed."""
    faults.rest()
    time.sleep(3)  # no repeated invocation is to come that the emulator would start as it was
    faults.worker("update_function_configuration", Timeout=6)  # of which it leaves 5 to settle
    # The template says so; the emulator's CloudFormation passes over it.
    faults.worker("put_function_recursion_config", RecursiveLoop="Allow")
    queues.configure(faults.conn, queue, max_workers=1)
    before, refused = faults.invocations(), faults.lines("kick not sent")
    with Producer(faults.kick).transaction(faults.conn) as tx:
        tx.enqueue_many([NewJob("nap", {"seconds": 0.005}, queue=queue)] * BACKLOG)
    try:
        faults.done(queue, BACKLOG, seconds=90)
        faults.rest()
        invocations = faults.invocations() - before
        print(f"{BACKLOG} jobs by {invocations} invocations in a row")  # noqa: T201
        assert invocations > HOPS
        assert faults.lines("kick not sent") == refused  # or an alarm had to begin a new chain
    finally:
        faults.worker("update_function_configuration", Timeout=TIMEOUT)
