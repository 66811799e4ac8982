"""The ways to wait for jobs, each as it is run in production, but for AWS: threads stand in for it.

An invocation calls the real handler of `functions/` in a thread, `INVOKE` after it is asked for. An
alarm fires somewhere in its minute, as EventBridge Scheduler's do.
"""

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol

import psycopg
from aws_lambda_powertools.utilities.typing import LambdaContext
from psycopg.conninfo import make_conninfo

from functions import _runtime as runtime
from functions import reaper, worker
from pgq_core import Context, Job, Settings, Tasks, claim, fence, schedules
from pgq_core.alarm import MINUTE, alarm_minute
from pgq_core.listen import Listener
from pgq_core.reaper import reclaim

INVOKE = 0.05  # s, from the call to the function's first line: assumed, warm
SETTINGS = Settings(
    tasks="bench.ways:tasks",
    worker_arn="arn:aws:lambda:us-east-1:123456789012:function:bench",
    alarm_group="bench",
    alarm_role_arn="arn:aws:iam::123456789012:role/bench",
)
LEASE = timedelta(minutes=5)


class Clock(Protocol):
    """Tell the time and let it pass."""

    def now(self) -> float:
        """Return the seconds since 1970."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""

    def spawn(self, at: float, act: Callable[[], object]) -> None:
        """Run *act* at an instant, in a thread."""


class Watched(psycopg.Connection[Any]):
    """Be a connection that is looked at once more before it closes: no sample can miss it."""

    look: Callable[[], None] = staticmethod(lambda: None)

    def close(self) -> None:
        """Look and close."""
        if not self.closed:
            Watched.look()
        super().close()


class Invocation(LambdaContext):
    """Be what Lambda tells a function about this invocation."""

    def __init__(self, clock: Clock) -> None:
        self._aws_request_id = str(uuid.uuid4())
        self._function_name = self._invoked_function_arn = "bench"
        self._memory_limit_in_mb = 256
        until = clock.now() + SETTINGS.worker_timeout
        self._left: Callable[[], int] = lambda: int((until - clock.now()) * 1000)

    def get_remaining_time_in_millis(self) -> int:  # type: ignore[override]  # theirs is static
        """Return what is left."""
        return self._left()


@dataclass
class Stack:
    """Stand in for Lambda and the Scheduler, and count."""

    clock: Clock
    dsn: str
    work: float  # s, that a handler takes
    wakeups: bool = True
    invocations: int = 0
    connections: int = 0
    seconds: float = 0.0  # of Lambda
    late: list[float] = field(default_factory=list)  # s, from due to started
    tasks: Tasks = field(default_factory=Tasks)
    alarms: set[tuple[str, datetime]] = field(default_factory=set)
    _dice: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311

    def __post_init__(self) -> None:
        """Put the stand-ins in the functions' place."""
        self.tasks.handler("note")(self.handle)
        stand_ins = {
            "settings": lambda: replace(SETTINGS, wakeups=self.wakeups),
            "tasks": lambda: self.tasks,
            "kick": lambda: self,
            "alarm": lambda: self,
            "connect": self.connect,
            "publish": lambda *_, **__: None,
        }
        for name, value in stand_ins.items():
            setattr(runtime, name, value)
        runtime.logger.setLevel("CRITICAL")

    def handle(self, job: Job, ctx: Context | None = None) -> None:
        """Be the user's handler."""
        del ctx
        self.late.append(self.clock.now() - job.run_at.timestamp())
        self.clock.sleep(self.work)
        if job.attempt <= job.payload.get("fails", 0):
            raise RuntimeError("as the trace says")

    def connect(self, name: str = "worker") -> psycopg.Connection[Any]:
        """Open a connection of the queue's."""
        self.connections += 1
        return Watched.connect(
            make_conninfo(self.dsn, user="queue"), autocommit=True, application_name=f"pgq/{name}"
        )

    def kick(self, queue: str, hop: int = 0) -> bool:
        """Invoke the worker."""
        self.invoke(self.clock.now() + INVOKE, {"queue": queue, "hop": hop})
        return True

    def arm(self, queue: str, at: datetime) -> bool:
        """Invoke the worker in the minute of *at*."""
        minute = alarm_minute(at, datetime.fromtimestamp(self.clock.now(), UTC))
        if (queue, minute) not in self.alarms:
            self.alarms.add((queue, minute))
            event = {"queue": queue, "alarm": (minute + MINUTE).isoformat()}
            self.invoke(minute.timestamp() + self._dice.uniform(0, 59), event)
        return True

    def invoke(self, at: float, event: object, handler: runtime.Handler = worker.handler) -> None:
        """Run a function at an instant."""

        def run() -> None:
            began = self.clock.now()
            self.invocations += 1
            handler(event, Invocation(self.clock))
            self.seconds += self.clock.now() - began

        self.clock.spawn(at, run)

    def sweep(self, first: float, every: float) -> None:
        """Invoke the worker for all queues again and again, and the reaper hourly."""
        at = first
        while True:
            self.clock.sleep(at - self.clock.now())
            self.invoke(at, {"queue": worker.SWEEP})
            if (at - first) % 3600 == 0:
                self.invoke(at, {}, reaper.handler)
            at += every

    def poll(self) -> None:
        """Be the worker of the article's first section: claim each second, for ever."""
        conn, polls = self.connect(), 0
        while True:
            if polls % 60 == 0:
                schedules.fire(conn, "default")
                reclaim(conn)
            polls += 1
            jobs = claim.claim(conn, "default", 10, LEASE)
            for job in jobs:
                try:
                    self.handle(job)
                except RuntimeError as error:
                    fence.fail(conn, job, error)
                else:
                    fence.complete(conn, [job])
            if not jobs:
                self.clock.sleep(1)

    def listen(self) -> None:
        """Be `pgq-core worker` with its defaults."""
        Ears(
            connect=partial(self.connect, "listener"),
            tasks=self.tasks,
            queue="default",
            batch_size=10,
            time_left=lambda: timedelta.max,
        ).run()


class Ears(Listener):
    """Wait for the day's clock instead of the socket."""

    nap: Callable[[float], None]

    def _hears(self, ears: psycopg.Connection[Any], seconds: float) -> bool:
        Ears.nap(min(seconds, 3600.0))
        return any(n.payload == self.queue for n in ears.notifies(timeout=0.02, stop_after=1))
