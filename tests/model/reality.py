"""The effect of a step of the protocols, taken from the real statements on a real database.

What an actor can see of its queue is a `View` of a few small numbers. `Reality` makes rows that
look like it, runs the function of `pgq_core` that the step stands for, and reads the view back. A
step has the same effect on the same view each time, so each pair is run once.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from pgq_core import jobs
from pgq_core.job import Job

TICK = timedelta(hours=1)  # no test takes as long, and no margin in the statements is
PAST = timedelta(minutes=1)
MOMENT = timedelta(
    seconds=20
)  # a step takes less, and what the statements put off is put off longer
LEASE = timedelta(days=1)
QUEUE, ME = "q", "me"
NONE = -1  # no instant
NOBODYS, ANOTHERS, MINE = range(3)  # whose kick is pending


class View(NamedTuple):
    """One queue as one actor sees it; instants are ticks from now, 0 = past."""

    jobs: tuple[int, ...] = ()  # the queued ones, when each is due
    kick: int = NOBODYS
    alarm: int = NONE
    mine: int = 0  # leases of this actor
    others: int = 0  # other workers with a live lease
    cap: int = 10


class Place:
    """A real queue that looks like a view, in the hands of one actor, who knows one instant."""

    def __init__(self, conn: psycopg.Connection[Any], view: View, at: int) -> None:
        self.conn, self.at = conn, at
        self.base: datetime = self.value("SELECT clock_timestamp()")
        self.conn.execute("DELETE FROM pgq_core.jobs WHERE queue = %s", [QUEUE])
        for ticks in view.jobs:
            self.conn.execute(
                "INSERT INTO pgq_core.jobs (queue, task, run_at) VALUES (%s, 't', %s)",
                [QUEUE, self.instant(ticks)],
            )
        for worker in [ME] * view.mine + [f"worker {n}" for n in range(view.others)]:
            self.conn.execute(
                "INSERT INTO pgq_core.jobs (queue, task, status, attempts, locked_by, locked_until)"
                " VALUES (%s, 't', 'running', 1, %s, %s)",
                [QUEUE, worker, self.base + LEASE],
            )
        self.mark = self.base if view.kick == MINE else self.base - timedelta(seconds=1)
        kick = None if view.kick == NOBODYS else self.base
        alarm = None if view.alarm == NONE else self.instant(view.alarm)
        self.conn.execute(
            "INSERT INTO pgq_core.queues (name, max_workers, kick_requested_at, alarm_at)"
            " VALUES (%s, %s, %s, %s) ON CONFLICT (name) DO UPDATE SET"
            " (max_workers, kick_requested_at, alarm_at) ="
            " (EXCLUDED.max_workers, EXCLUDED.kick_requested_at, EXCLUDED.alarm_at)",
            [QUEUE, view.cap, kick, alarm],
        )
        self.before = view

    def value(self, query: str, *params: object) -> Any:
        row = self.conn.execute(query, params).fetchone()
        return row[0] if row else None

    def instant(self, ticks: int) -> datetime:
        return self.base - PAST + ticks * TICK

    def ticks(self, at: datetime | None) -> int:
        """Count the ticks to *at*: 0 if that is by now, else at least one."""
        if at is None:
            return NONE
        return 0 if at < self.base + MOMENT else max(1, round((at - self.base) / TICK))

    def held(self) -> Job:
        """Return the job that this actor has held the longest."""
        query = "SELECT min(id) FROM pgq_core.jobs WHERE locked_by = %s"
        job = jobs.get(self.conn, self.value(query, ME))
        assert job is not None
        return job

    def own(self) -> int:
        """Return the id of a queued job for this actor's instant; 0 = it is queued no more."""
        rows = self.conn.execute(
            "SELECT id, run_at FROM pgq_core.jobs WHERE queue = %s AND status = 'queued'", [QUEUE]
        )
        return next((i for i, run_at in rows if self.ticks(run_at) == self.at), 0)

    def view(self) -> View:
        rows = self.conn.execute(
            "SELECT status, run_at, locked_by FROM pgq_core.jobs WHERE queue = %s", [QUEUE]
        ).fetchall()
        [(kick, alarm, cap)] = self.conn.execute(
            "SELECT kick_requested_at, alarm_at, max_workers FROM pgq_core.queues WHERE name = %s",
            [QUEUE],
        ).fetchall()
        holders = [holder for status, _, holder in rows if status == "running"]
        return View(
            jobs=tuple(sorted(self.ticks(at) for status, at, _ in rows if status == "queued")),
            kick=self.whose(kick),
            alarm=self.ticks(alarm),
            mine=holders.count(ME),
            others=len(set(holders) - {ME}),
            cap=cap,
        )

    def whose(self, kick: datetime | None) -> int:
        if kick is None:
            return NOBODYS
        return self.before.kick if kick == self.base else MINE


Statement = Callable[[Place], bool | None]


class Effect(NamedTuple):
    """The answer of a step, what its actor's queue looks like then, and the instant it knows."""

    yes: bool
    view: View
    at: int


class Reality:
    """The effects of the real statements, each found out once."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.known: dict[tuple[Statement, View, int], Effect] = {}

    def effect(self, statement: Statement, view: View, at: int) -> Effect:
        key = statement, view, at
        if key not in self.known:
            self.known[key] = self.run(*key)
        return self.known[key]

    def run(self, statement: Statement, view: View, at: int) -> Effect:
        place = Place(self.conn, view, at)
        yes = statement(place) is not False
        after = place.view()
        assert after.others == view.others, "a step has touched the lease of another worker"
        return Effect(yes, after, place.at)
