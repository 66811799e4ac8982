"""The programs that are walked are those of `work` and `Producer`: they run the same statements."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgq_core import Job, Producer, Retry, Tasks, db, enqueue, queues
from pgq_core.claim import claim
from tests.model import alarms, kicks
from tests.model.machine import BEGIN, END, START, Do, Let, Program
from tests.model.reality import LEASE, MINE, Reality, Statement, View
from tests.producer.fakes import Kicks as ProducersKicks
from tests.worker.fakes import Alarms, Drain, Kicks, TimeLeft

Trace = list[str]
#: Each statement has something to do in it.
RICH = View(jobs=(0, 1), mine=1, kick=MINE, alarm=1)
ENOUGH, SCARCE, OVER = 100, 30, 1  # s left


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """The names of the statements that are run from now on."""
    names: Trace = []
    read = db.statement

    def statement(name: str) -> bytes:
        names.append(name)
        return read(name)

    monkeypatch.setattr(db, "statement", statement)
    return names


class Names:
    """Say which file of `pgq_core/sql` a step runs, found out by running it."""

    def __init__(self, reality: Reality, trace: Trace) -> None:
        self.reality, self.trace = reality, trace
        self.known: dict[Statement, str] = {}

    def of(self, statement: Statement) -> str:
        if statement not in self.known:
            before = len(self.trace)
            self.reality.run(statement, RICH, 1)
            [self.known[statement]] = [name for name in self.trace[before:] if name != "get"]
            del self.trace[before:]
        return self.known[statement]

    def follow(self, program: Program, first: str, trace: Iterable[str]) -> bool:
        """Tell whether who begins at *first* could have run what *trace* says, leaving out what
        the program knows nothing of."""
        mine = {self.of(do.statement) for do in statements(program, everything(program, first))}
        at = {first}
        for name in (name for name in trace if name in mine):
            done = [
                do
                for do in statements(program, reach(program, at))
                if self.of(do.statement) == name
            ]
            at = {step for do in done for step in (do.yes, do.no)}
        return END in reach(program, at)


def statements(program: Program, at: set[str]) -> list[Do]:
    """Return the statements that can be run at these steps."""
    return [do for step in at for do in program.get(step, ()) if isinstance(do, Do)]


def reach(program: Program, at: set[str]) -> set[str]:
    """Return *at* and the steps to be come to from there with no statement."""
    dos = (do for step in at for do in program.get(step, ()))
    found = at | {do.yes for do in dos if isinstance(do, Let)}
    return at if found == at else reach(program, found)


def everything(program: Program, first: str) -> set[str]:
    """Return every step that can be come to from the *first*."""
    found, before = {first}, set[str]()
    while found != before:
        before = found
        found = reach(program, found)
        found = found | {step for do in statements(program, found) for step in (do.yes, do.no)}
    return found


@pytest.fixture
def names(reality: Reality, trace: Trace) -> Names:
    return Names(reality, trace)


class Worker:
    """A worker whose batch is one job, and whose time is in our hands; *trace* is what it runs."""

    def __init__(self, dsn: str, conn: psycopg.Connection, trace: Trace) -> None:
        self.conn, self.trace = conn, trace
        self.tasks, self.left = Tasks(), TimeLeft(ENOUGH)
        self.drain = Drain(dsn, self.tasks)
        self.tasks.handler("ok")(lambda _: None)
        self.tasks.handler("slow", timeout=timedelta(seconds=SCARCE))(lambda _: None)
        self.tasks.handler("last")(self.no_time_is_left)
        self.tasks.handler("again")(lambda _: Retry("no", after=timedelta(seconds=1)))

    def no_time_is_left(self, _job: Job) -> None:
        self.left.seconds = OVER

    def work(self, *names: str, **options: Any) -> None:
        """Work off a job of each of these tasks."""
        for name in names:
            enqueue(self.conn, name, {}, max_attempts=2)
        self.trace.clear()
        self.drain(batch_size=1, time_left=self.left, **options)


@pytest.fixture
def worker(dsn: str, conn: psycopg.Connection, trace: Trace) -> Worker:
    return Worker(dsn, conn, trace)


def drains(worker: Worker) -> None:
    worker.work("ok", "ok", "ok")


def finds_a_full_house(worker: Worker) -> None:
    queues.configure(worker.conn, "default", max_workers=1)
    enqueue(worker.conn, "ok", {})
    claim(worker.conn, "default", 1, LEASE, worker="another")
    worker.work("ok")
    assert "claim" not in worker.trace


def hands_over(worker: Worker) -> None:
    worker.work("last", "ok")
    assert ("default", 1) in worker.drain.kicks.sent


def hands_back(worker: Worker) -> None:
    worker.left.seconds = SCARCE
    worker.work("slow", "ok")
    assert "release" in worker.trace
    assert ("default", 1) in worker.drain.kicks.sent


def is_refused_its_kick(worker: Worker) -> None:
    worker.drain.kicks = Kicks(lambda: False)
    worker.work("ok", "ok")
    assert "withdraw_kick" in worker.trace


def arms(worker: Worker) -> None:
    worker.work("ok", "again")
    assert worker.drain.alarms.armed


def waits(worker: Worker) -> None:
    worker.work("again", wait=timedelta(seconds=30))
    assert worker.trace.count("wake") == 2


def is_refused_its_alarm(worker: Worker) -> None:
    worker.drain.alarms = Alarms(lambda: False)
    worker.work("again")
    assert "defer_alarm" in worker.trace


Does = Callable[[Worker], None]
BY_KICKS = [drains, finds_a_full_house, hands_over, hands_back, is_refused_its_kick]
BY_ALARMS = [drains, arms, waits, is_refused_its_alarm]
KICKS = {**kicks.PROTOCOL, **kicks.REFUSALS}
ALARMS = {**alarms.PROTOCOL, **alarms.REFUSALS}


@pytest.mark.parametrize("does", BY_KICKS)
def test_a_worker_follows_the_program_of_the_kicks(
    worker: Worker, names: Names, does: Does
) -> None:
    does(worker)
    assert names.follow(KICKS, START, worker.trace), worker.trace


@pytest.mark.parametrize("does", BY_ALARMS)
def test_a_worker_follows_the_program_of_the_alarms(
    worker: Worker, names: Names, does: Does
) -> None:
    does(worker)
    assert names.follow(ALARMS, START, worker.trace), worker.trace


@pytest.mark.parametrize(
    ("program", "does"),
    [
        ("clears after claiming", drains),
        ("clears and claims in one transaction", drains),
        ("checks the cap before clearing", drains),
        ("ends on an empty claim made while it holds a lease", drains),
        ("hands over before the release", hands_back),
        ("ends at the deadline without a kick", hands_over),
    ],
)
def test_a_worker_does_not_follow_a_wrong_program(
    worker: Worker, names: Names, program: str, does: Does
) -> None:
    does(worker)
    assert not names.follow({**KICKS, **kicks.WRONG[program]}, START, worker.trace)


@pytest.mark.parametrize("answer", [True, False])
def test_a_producer_follows_the_programs(
    conn: psycopg.Connection,
    names: Names,
    trace: Trace,
    answer: bool,  # noqa: FBT001 - by name, from pytest
) -> None:
    with Producer(ProducersKicks(lambda _: answer)).transaction(conn) as tx:
        tx.enqueue("ok", {})
    ran = list(trace)
    assert names.follow(KICKS, BEGIN, ran), ran
    wrong = {**KICKS, **kicks.WRONG["asks before the commit"]}
    assert not names.follow(wrong, BEGIN, ran)
