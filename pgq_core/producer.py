"""The producer hook: enqueue in the application's transaction, and wake a worker after its commit.

A kick before the commit would find nothing, one inside the transaction would delay it. So the
connection must be idle when a block begins: then the end of the block is the commit. After it
nothing of ours is ever raised; whatever is in doubt, kick: a kick too many costs an empty claim.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from . import queues
from .db import Connection, Place, autocommit, place, require_idle
from .enqueue import enqueue, enqueue_many
from .job import MAX_PAYLOAD_BYTES, Enqueued, NewJob, check_name
from .kick import Kick, NoKick
from .tasks import Task

logger = logging.getLogger(__name__)
T = TypeVar("T")
#: Per queue, the ids of its jobs if all are for later; None = something may be due at once.
Wanted = dict[str, list[int] | None]

_served: ContextVar["Served | None"] = ContextVar("pgq_core_served", default=None)

SLOW = 0.4  # s: a kick that failed after this long timed out; the next queue's would do so too
AT_MOST = 2.0  # s: what the kicks of one commit may cost, before the last of them


@dataclass(kw_only=True, slots=True)
class Transaction:
    """Collect the jobs of one transaction; given by `Producer.transaction`."""

    conn: Connection
    max_payload_bytes: int
    wanted: Wanted = field(default_factory=dict)
    complete: bool = False
    ended: bool = False

    def enqueue(
        self,
        task: str | Task,
        payload: Mapping[str, Any],
        **options: Any,  # noqa: ANN401 - those of enqueue
    ) -> Enqueued:
        """Enqueue one job; the arguments are those of `pgq_core.enqueue`.

        *task* may be a registered handler too: then its own queue, priority and max_attempts hold.

        Raises:
            ValueError, TypeError: an argument is refused, or the block has ended.
        """
        self._check_open()
        if isinstance(task, Task):
            options, task = task.options() | options, task.name
        options = {"max_payload_bytes": self.max_payload_bytes} | options
        enqueued = enqueue(self.conn, task, payload, **options)
        later = options.get("delay") is not None or options.get("run_at") is not None
        self._want(options.get("queue", "default"), enqueued, later=later)
        return enqueued

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Enqueued]:
        """Enqueue many jobs; say in the order given what became of each."""
        self._check_open()
        given = list(jobs)
        enqueued = enqueue_many(self.conn, given, max_payload_bytes=self.max_payload_bytes)
        for job, result in zip(given, enqueued, strict=True):
            later = job.delay is not None or job.run_at is not None
            self._want(job.queue, result, later=later)
        return enqueued

    def _check_open(self) -> None:
        if self.ended:  # nobody would be kicked for it
            raise ValueError("the block of this transaction has ended; enqueue inside it")

    def _want(self, queue: str, enqueued: Enqueued, *, later: bool) -> None:
        ids = self.wanted.setdefault(queue, [])
        if not (later and enqueued.inserted):
            self.wanted[queue] = None
        elif ids is not None:
            ids.append(enqueued.id)

    def absorb(self, inner: "Transaction") -> None:
        """Take over what a nested block wants; it commits with this one."""
        for queue, ids in inner.wanted.items():
            mine = self.wanted.get(queue, [])
            self.wanted[queue] = None if ids is None or mine is None else mine + ids


class Producer:
    """Wake workers for what this process commits: one per process, thread-safe, no I/O until used.

    `stats` counts the kicks *sent*, *coalesced* (somebody's was pending) and *failed*.
    """

    def __init__(self, kick: Kick, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        """Take the *kick* to send, and the limit for payload and headers as UTF-8 JSON."""
        if isinstance(kick, type) or not callable(getattr(kick, "kick", None)):
            raise TypeError(f"kick: a Kick such as LambdaKick(name) is expected, not {kick!r}")
        self._kick = kick
        self._max_payload_bytes = max_payload_bytes
        self._open: dict[Connection, Transaction] = {}
        self.stats: Counter[str] = Counter(sent=0, coalesced=0, failed=0)

    @contextmanager
    def transaction(self, conn: Connection) -> Iterator[Transaction]:
        """Open a transaction on *conn*; after its commit kick each queue enqueued to, once.

        Blocks of one producer nest: the inner ones are savepoints, and the outermost kicks. The
        connection's autocommit mode, row factory and cursor class stay as they are.

        Args:
            conn: the application's own synchronous psycopg connection, idle.

        Raises:
            OpenTransaction: *conn* is in a transaction that is not this producer's.
            psycopg.Error: whatever the transaction or its COMMIT raises; never the kick.
        """
        outer = self._open.get(conn)
        if outer is None:
            require_idle(conn)
        tx = Transaction(conn=conn, max_payload_bytes=self._max_payload_bytes)
        self._open[conn] = tx
        try:
            with conn.transaction():
                yield tx
                tx.complete = _can_commit(conn)  # a swallowed psycopg.Rollback never gets here
        except BaseException as error:
            refused = isinstance(error, psycopg.Error) and not conn.closed
            if outer is None and tx.complete and not refused:  # was the COMMIT done? then kick
                self._send(conn, tx.wanted)
            raise
        finally:
            tx.ended = True
            del self._open[conn]
            if outer is not None:
                self._open[conn] = outer
        if tx.complete:
            outer.absorb(tx) if outer else self._send(conn, tx.wanted)

    def kick(self, conn: Connection, queues: Iterable[str]) -> None:
        """Kick *queues* after a commit of your own; never raises for AWS or the database.

        Raises:
            OpenTransaction: *conn* is not idle, so the commit is still to come.
            ValueError, TypeError: a queue's name is refused.
        """
        names = [queues] if isinstance(queues, str) else list(queues)
        for name in names:
            check_name("queues", name)
        require_idle(conn)
        self._send(conn, dict.fromkeys(names))

    def _send(self, conn: Connection, wanted: Wanted) -> None:
        """Kick what is wanted; after a time-out no more: 2 s in all is what a commit may cost."""
        if isinstance(self._kick, NoKick):  # sets no mark: it must not silence the others
            return
        began, timed_out = time.monotonic(), False
        for queue, ids in wanted.items():
            served = _served.get()
            if served is not None and served.takes(queue, conn, self._kick):
                continue
            if timed_out or time.monotonic() - began > AT_MOST:
                self.stats["failed"] += 1
                continue
            started = time.monotonic()
            result = request(conn, self._kick, queue, ids or ())
            self.stats[result] += 1
            timed_out = result == "failed" and time.monotonic() - started > SLOW


def _can_commit(conn: Connection) -> bool:
    if conn.info.transaction_status is not TransactionStatus.INERROR:
        return True
    logger.warning("a statement had failed, so the transaction is rolled back: no job was enqueued")
    return False


@dataclass(kw_only=True)
class Served:
    """Be the queue that a drain serves: it claims once more, so its handlers need not kick for it.

    What was withheld is made up for, once, when the drain ends otherwise than on an empty claim.
    """

    queue: str
    where: Place
    withheld: list[Kick] = field(default_factory=list)
    ended: bool = False

    def takes(self, queue: str, conn: Connection, kick: Kick) -> bool:
        """Tell whether the drain will see what was committed; keep *kick* in case it does not."""
        mine = not self.ended and (queue, place(conn)) == (self.queue, self.where)
        if mine:
            self.withheld.append(kick)
        return mine

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Let a handler run inside."""
        token = _served.set(self)
        try:
            yield
        finally:
            _served.reset(token)

    def end(self) -> None:
        """Send what is still withheld."""
        self.ended = True
        for kick in self.withheld[:1]:
            send(kick, self.queue)


def request(conn: Connection, kick: Kick, queue: str, future: Sequence[int] = ()) -> str:
    """Kick *queue* unless somebody's kick is pending; return "sent", "coalesced" or "failed".

    Never raises: the commit is done.
    """
    unknown: queues.KickRequest = (True, None)
    ask = partial(queues.request_kick, queue=queue, future=future)
    needed, mark = _quietly(conn, ask, unknown)
    if not needed:
        return "coalesced"
    if send(kick, queue):
        return "sent"
    if mark is not None:
        _quietly(conn, partial(queues.withdraw_kick, queue=queue, mark=mark), None)
    return "failed"


def send(kick: Kick, queue: str, hop: int = 0) -> bool:
    """Kick whatever the marks say; a kick that raises counts as not accepted."""
    try:
        return kick.kick(queue, hop) if hop else kick.kick(queue)
    except Exception:
        logger.warning("kick raised", exc_info=True, extra={"queue": queue})
        return False


def _quietly(conn: Connection, act: Callable[[Connection], T], otherwise: T) -> T:
    """Return what *act* does in a transaction of its own, or *otherwise* when it cannot."""
    try:
        with autocommit(conn):
            return act(conn)
    except Exception:
        logger.warning("kick mark not used", exc_info=True)
        return otherwise
