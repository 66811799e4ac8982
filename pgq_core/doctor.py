"""Look at a deployment from its database, and say what is wrong and how to mend it.

The facts are read first and judged afterwards, each by a function that reads nothing itself.
Nothing is changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from psycopg import errors as pg

from .db import Connection, Row, run
from .errors import SchemaMismatch
from .listen import hearing
from .migrate import check
from .tasks import Tasks
from .worker import RESERVE, START

SKEW = 10  # s: a one-time schedule is set by the worker's clock, in whole minutes
STRANDED = timedelta(minutes=3)  # an alarm may be 130 s late
OLD_SNAPSHOT = timedelta(minutes=5)
MANY_DEAD = 50_000  # rows; claims took three times as long over so many (docs/operations.md)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Be one thing the doctor says: *ok*, *warn* or *fail*, what was seen, what to do."""

    level: str
    check: str
    seen: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """Say what the database cannot tell; None leaves out the checks that need it.

    Args:
        worker_timeout: after how long the platform ends a worker.
        sweep_every: the period of the sweep.
        suspend_after: after how long without activity the database suspends.
        listens: whether a worker is meant to listen.
    """

    tasks: Tasks | None = None
    worker_timeout: timedelta | None = None
    sweep_every: timedelta | None = None
    suspend_after: timedelta | None = None
    listens: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Be the row of `facts.sql`, in its order."""

    now: datetime
    read_only: bool
    missing: str | None
    hidden: bool
    oldest_snapshot: timedelta | None
    idle_slots: int
    dead_rows: int
    autovacuum: bool
    vacuuming: int
    logical_slots: int


def examine(conn: Connection, deployment: Deployment) -> list[Finding]:
    """Return what there is to say of each thing looked at.

    Raises:
        psycopg.Error: *conn*, which is idle and in autocommit mode, does not let it look at all.
    """
    try:
        check(conn)
        facts, clock = Facts(*run(conn, "facts")[0]), datetime.now(UTC)
        stranded = run(conn, "stranded", patience=STRANDED)
        heard = hearing(conn)
    except SchemaMismatch as error:
        return [_finding("schema", str(error), "run `pgq-core migrate`")]
    except pg.InsufficientPrivilege as error:
        return [_finding("permissions", error.diag.message_primary, "use the functions' role")]
    return [
        _finding("schema", None, fine="fits this code"),
        *_server(facts, clock),
        *_wake_ups(stranded),
        *_listening(*heard, listens=deployment.listens),
        *_vacuum(facts),
        *_sleep(facts, deployment),
        *_invocations(deployment),
    ]


def _finding(
    check: str,
    trouble: str | Literal[False] | None,
    remedy: str = "",
    *,
    fine: str = "-",
    level: str = "fail",
) -> Finding:
    if not trouble:
        return Finding(level="ok", check=check, seen=fine)
    return Finding(level=level, check=check, seen=trouble, remedy=remedy)


def _server(facts: Facts, clock: datetime) -> Iterator[Finding]:
    remedy = "name the primary, not a replica; a full disk does this, too"
    yield _finding("server", facts.read_only and "read-only", remedy, fine="takes writes")
    lacking = facts.missing and f"missing: {facts.missing}"
    yield _finding("permissions", lacking, "grant them to this role", fine="all that is needed")
    remedy = "let the functions' role own the table, or give it a policy for all rows"
    seen = facts.hidden and "row security hides jobs from this role"
    yield _finding("row security", seen, remedy, fine="hides nothing")
    skew = (clock - facts.now).total_seconds()
    seen = abs(skew) > SKEW and f"this clock is {skew:+.0f} s off the database's"
    remedy = "set it (NTP): where the worker's is off, its alarms come as much too early or late"
    yield _finding("clock", seen, remedy, fine="agrees with the database's", level="warn")


def _wake_ups(stranded: Sequence[Row]) -> Iterator[Finding]:
    for queue, waited, kicked, alarm_in in stranded:
        due = f"{queue}: due for {_brief(waited)},"
        kick = f"pgq-core queues resume {queue} --kick FUNCTION"
        if kicked:
            remedy = "look at the worker's log and errors: it is woken, and does not get to work"
            yield _finding(
                "wake-ups", f"{due} kicked in the last minute, and no worker came", remedy
            )
        elif alarm_in is None:
            remedy = f"{kick}; look for `kick not sent` where it is enqueued"
            yield _finding("wake-ups", f"{due} and nobody was woken", remedy)
        elif alarm_in < timedelta(0):
            remedy = f"{kick}; look at the worker's log, and at the schedules' group and role"
            yield _finding("wake-ups", f"{due} and its alarm was lost", remedy)
        else:
            seen = f"{due} and nobody comes for {_brief(alarm_in)}"
            yield _finding("wake-ups", seen, kick, level="warn")
    if not stranded:
        yield _finding("wake-ups", None, fine="nothing due is left behind")


def _listening(direct: bool, notifies: bool, *, listens: bool) -> Iterator[Finding]:  # noqa: FBT001
    remedy = "let the listener connect directly: through a pooler it hears nothing"
    fine = "none in between" if direct else "one in between: right for the functions"
    yield _finding("pooler", listens and not direct and "one in between", remedy, fine=fine)
    if listens or not notifies:
        deaf = not notifies and listens and "inserts send no notification"
        yield _finding("notify", deaf, "pgq-core notify on", fine="on" if listens else "off")
    else:
        remedy = "pgq-core notify off (it makes commits wait for one another), or say --listens"
        yield _finding("notify", "on, and nobody is said to listen", remedy, level="warn")


def _vacuum(facts: Facts) -> Iterator[Finding]:
    many = facts.dead_rows > MANY_DEAD and f"{facts.dead_rows:,} dead rows slow down each claim"
    remedy = "VACUUM pgq_core.jobs, once no old snapshot is left"
    yield _finding("dead rows", many, remedy, fine=f"{facts.dead_rows:,}", level="warn")
    age = facts.oldest_snapshot or timedelta(0)
    old = age > OLD_SNAPSHOT and f"a transaction has been open for {_brief(age)}"
    remedy = "end it: nothing it could still see is vacuumed"
    yield _finding("snapshots", old, remedy, fine="none is old", level="warn")
    idle = facts.idle_slots > 0 and f"{facts.idle_slots} replication slots that nobody reads"
    remedy = "drop them: they keep WAL, and rows from vacuum"
    yield _finding("replication slots", idle, remedy, fine="none is idle", level="warn")
    remedy = "switch it on: a queue lives on vacuum"
    yield _finding("autovacuum", not facts.autovacuum and "off", remedy, fine="on")


def _sleep(facts: Facts, deployment: Deployment) -> Iterator[Finding]:
    suspend, sweep = deployment.suspend_after, deployment.sweep_every
    if suspend is None:
        return
    often = sweep is not None and sweep <= suspend and f"a sweep every {_brief(sweep)}"
    reasons = [
        (often, "sweep less often than the database suspends"),
        (facts.logical_slots > 0 and "logical replication", "end it, or do not pay for sleep"),
        (facts.vacuuming > 0 and "an autovacuum worker", "nothing: it ends by itself"),
    ]
    for reason, remedy in reasons:
        if reason:
            yield _finding("sleep", f"kept awake by {reason}", remedy, level="warn")
    if not any(reason for reason, _ in reasons):
        yield _finding("sleep", None, fine="nothing of this keeps it awake")


def _invocations(deployment: Deployment) -> Iterator[Finding]:
    if deployment.tasks is None or deployment.worker_timeout is None or deployment.listens:
        return
    most = max(deployment.worker_timeout - START - RESERVE, timedelta(0))
    names = ", ".join(deployment.tasks.longer_than(most))
    long = names and f"longer than the {_brief(most)} an invocation leaves: {names}"
    remedy = "raise the worker's timeout or lower the tasks': their jobs fail"
    yield _finding("tasks", long, remedy, fine="each fits an invocation")


def _brief(time: timedelta) -> str:
    return str(timedelta(seconds=round(time.total_seconds())))
