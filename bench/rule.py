"""What keeps a database awake: the first article's rule, and the minutes that it makes."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from pgq_core.db import Connection

#: What the compute's activity monitor looks at, but for our own session (the role postgres).
ACTIVITY = """
SELECT usename::text, coalesce(state, 'active') <> 'idle' AS busy,
       extract(epoch FROM state_change)::float8
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND usename <> 'postgres' AND datname = current_database()
UNION ALL
SELECT 'autovacuum', true, NULL
FROM pg_stat_activity
WHERE backend_type = 'autovacuum worker' AND datname = current_database()
UNION ALL
SELECT 'replication', true, NULL FROM pg_replication_slots WHERE slot_type = 'logical' AND active
"""


def spans(instants: Iterable[float], timeout: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield when the database is awake: from each activity until *timeout* after the last."""
    begins = until = None
    for at in sorted(instants):
        if begins is None or until is None:
            begins = at
        elif at > until:
            yield begins, until
            begins = at
        until = min(at + timeout, end)
    if begins is not None and until is not None:
        yield begins, until


def awake(instants: Iterable[float], timeout: float, end: float) -> float:
    """Return the seconds awake."""
    return sum(until - begins for begins, until in spans(instants, timeout, end))


class Monitor:
    """Apply the rule: note the instants of activity, by role."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.seen: defaultdict[str, set[float]] = defaultdict(set)

    def look(self, now: float, at: Callable[[float], float]) -> None:
        """Take one sample at *now*; *at* turns a real instant into the day's."""
        for role, busy, changed in self._conn.execute(ACTIVITY).fetchall():
            self.seen[role].add(round(now if busy else at(changed), 3))

    def last(self) -> float:
        """Return the instant of the last activity."""
        return max((max(instants) for instants in self.seen.values()), default=0.0)
