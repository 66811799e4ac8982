"""Two clocks to play traffic by: one that leaves out the quiet stretches, and the plain one.

`Skipping` runs one thread at a time. While one runs, its time is real; when all of them wait, the
clock jumps to the next instant at which something happens, and Postgres with it (`SHADOW`). So no
duration is compressed: a statement, a connect, a backoff and a lease last as long as ever.
"""

import heapq
import itertools
import threading
import time
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

#: In front of pg_catalog in the search path: what now() and clock_timestamp() mean in a database.
SHADOW = """
CREATE SCHEMA shadow;
CREATE SEQUENCE shadow.skipped MINVALUE -4611686018427387904;
SELECT setval('shadow.skipped', 0);
CREATE FUNCTION shadow.now() RETURNS timestamptz STABLE PARALLEL SAFE LANGUAGE plpgsql AS $$ BEGIN
RETURN pg_catalog.now() + pg_sequence_last_value('shadow.skipped') * interval '1 microsecond';
END $$;
CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN
RETURN pg_catalog.clock_timestamp()
    + pg_sequence_last_value('shadow.skipped') * interval '1 microsecond';
END $$;
"""


class Plain:
    """The real clock."""

    now = staticmethod(time.time)
    sleep = staticmethod(time.sleep)

    def spawn(self, at: float, act: Callable[[], object]) -> None:
        """Run *act* at an instant, in a thread."""
        timer = threading.Timer(max(0.0, at - time.time()), act)
        timer.daemon = True  # an alarm may be for later than anybody waits
        timer.start()


@dataclass(eq=False)
class Turn:
    """Be a thread's right to run from an instant on."""

    go: threading.Event = field(default_factory=threading.Event)
    taken: bool = False


class Skipping:
    """Jump over the stretches in which every thread waits; *jump* is told the seconds skipped."""

    def __init__(self, start: float, jump: Callable[[float], None]) -> None:
        self._jump = jump
        self._due: list[tuple[float, int, Turn]] = []
        self._order = itertools.count()
        self._naps: list[Turn] = []
        self._back = threading.Semaphore(0)
        self._failed: list[BaseException] = []
        self._jumps: list[tuple[float, float]] = []
        self._skip(start - time.time())

    def _skip(self, seconds: float) -> None:
        self._jumps.append((time.time(), seconds))
        self._jump(seconds)

    def now(self) -> float:
        """Return the seconds since 1970 as the day goes."""
        return time.time() + self._jumps[-1][1]

    monotonic = now

    def at(self, real: float) -> float:
        """Return what the clock showed at a real instant."""
        return real + self._jumps[max(0, bisect(self._jumps, (real, 1e18)) - 1)][1]

    def spawn(self, at: float, act: Callable[[], object]) -> None:
        """Run *act* at an instant, in a thread."""
        turn = Turn()

        def run() -> None:
            turn.go.wait()
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - raised again by `play`
                self._failed.append(error)
            self._back.release()

        threading.Thread(target=run, daemon=True).start()
        self._push(at, turn)

    def _push(self, at: float, turn: Turn) -> None:
        heapq.heappush(self._due, (at, next(self._order), turn))

    def sleep(self, seconds: float, *, nap: bool = False) -> None:
        """Let the others run; a *nap* ends early when somebody rouses."""
        turn = Turn()
        self._push(self.now() + seconds, turn)
        if nap:
            self._naps.append(turn)
        self._back.release()
        turn.go.wait()

    def rouse(self) -> None:
        """End all naps."""
        for turn in self._naps:
            self._push(self.now(), turn)
        self._naps.clear()

    def play(self, until: float, before: Callable[[float], None]) -> None:
        """Run everything up to *until*; *before* is told each next instant, while all wait.

        What still waits then is left waiting.
        """
        while self._due and self._due[0][0] <= until:
            before(self._due[0][0])
            at, _, turn = heapq.heappop(self._due)
            if turn.taken:
                continue
            if at > self.now():
                self._skip(at - time.time())
            turn.taken = True
            turn.go.set()
            self._back.acquire()
            if self._failed:
                raise self._failed[0]
        before(until)
