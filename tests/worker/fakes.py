"""What a worker's test puts around `work()`: its connections, its kicks and alarms, its clock."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.abc import RV, PQGen

from pgq_core import DrainReport, Enqueued, Job, Tasks, work
from tests.instants import About

Put = Callable[..., Enqueued]
Look = Callable[[Enqueued], Job]
Value = Callable[..., Any]

NAME = "worker under test"


class Kicks:
    """Note whom it was asked to wake; *answer* says (or does) what becomes of each kick."""

    def __init__(self, answer: Callable[[], bool] = lambda: True) -> None:
        self.answer = answer
        self.sent: list[tuple[str, int]] = []

    def kick(self, queue: str, hop: int = 0) -> bool:
        self.sent.append((queue, hop))
        return self.answer()


class Alarms:
    """Note for when it was asked to wake; *answer* says (or does) what becomes of each alarm."""

    def __init__(self, answer: Callable[[], bool] = lambda: True) -> None:
        self.answer = answer
        self.armed: list[About] = []

    def arm(self, queue: str, at: datetime) -> bool:
        assert queue == "default"
        self.armed.append(About(at))
        return self.answer()


class Connector:
    """Open the worker's connections, under a name by which the server's view can be asked."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.opened: list[Lossy] = []
        self.refusals = 0

    def __call__(self) -> "Lossy":
        if self.refusals:
            self.refusals -= 1
            raise psycopg.OperationalError("the database is away for a moment")
        conn = Lossy.connect(self.dsn, application_name=NAME)
        self.opened.append(conn)
        return conn

    @property
    def open(self) -> int:
        return sum(not conn.closed for conn in self.opened)


class Lossy(psycopg.Connection[Any]):
    """Lose the connection after the server has done what it was told, but before it can say so."""

    lose_after = 0  # replies from now; 0 = never

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        reply = super().wait(gen, *args, **options)
        self.lose_after -= 1
        if self.lose_after == 0:
            self.close()
            raise psycopg.OperationalError("the reply was lost")
        return reply


class TimeLeft:
    """What is left of the invocation: as many *seconds* as the test says."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> timedelta:
        return timedelta(seconds=self.seconds)


class Drain:
    """Let workers work, one after the other; note their connections, kicks and alarms."""

    def __init__(self, dsn: str, tasks: Tasks) -> None:
        self.tasks = tasks
        self.worker = Connector(dsn)
        self.kicks = Kicks()
        self.alarms = Alarms()

    def __call__(self, **options: Any) -> DrainReport:
        given: dict[str, Any] = {"kick": self.kicks, "alarm": self.alarms} | options
        return work(self.worker, self.tasks, **given)


class Statements:
    """The statements sent, by name, in order; *before* one of them a test may look around."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.before: dict[str, Callable[[], None]] = {}

    def note(self, name: str) -> None:
        self.sent.append(name)
        self.before.get(name, lambda: None)()


def until(condition: Callable[[], bool], seconds: float = 20) -> float:
    """Wait for what must come; return how many seconds it took."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            pytest.fail(f"did not happen within {seconds} s")
        time.sleep(0.005)
    return time.monotonic() - started
