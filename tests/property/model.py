"""A job as the promises have it, in plain numbers: what the table must say after each step.

Instants are seconds of the model's own clock, which moves only when a test ages the rows.
"""

from dataclasses import dataclass

MINUTE = 60


@dataclass(kw_only=True)
class Model:
    """Be one job; each method is one statement, seen from outside."""

    queue: str
    priority: int
    max_attempts: int
    unique_key: str | None
    due: int
    status: str = "queued"
    attempts: int = 0
    released: int = 0
    crashed: int = 0
    holder: str | None = None
    lease: int = 0  # the end of the last one that its holder did not give back
    settled: tuple[int, str] = (0, "")
    ended: int = 0

    @property
    def unfinished(self) -> bool:
        return self.status in ("queued", "running")

    def row(self, now: int) -> tuple[str, int, int, int, str | None, int | None]:
        """Return what the table shows: status, counts, holder, seconds to the next instant."""
        counts = (self.attempts, self.released, self.crashed)
        match self.status:
            case "running":
                return (self.status, *counts, self.holder, self.lease - now)
            case "queued":
                return (self.status, *counts, None, self.due - now)
        return (self.status, *counts, None, None)

    def is_due(self, now: int) -> bool:
        return self.status == "queued" and self.due <= now

    def is_waiting(self, now: int) -> bool:
        """Tell whether a worker has something to do for it."""
        return self.is_due(now) or (self.status == "running" and self.lease <= now)

    def claim(self, worker: str, now: int, lease: int) -> None:
        assert self.lease <= now, "claimed while somebody holds a live lease"
        assert self.attempts - self.released < self.max_attempts
        self.status, self.holder, self.lease = "running", worker, now + lease
        self.attempts += 1

    def write(self, verb: str, attempts: int, now: int) -> bool:
        """Settle or extend under the fence; False = the lease was lost."""
        if (self.status, self.attempts) != ("running", attempts):
            return self.settled == (attempts, verb)  # the same write again, its reply was lost
        if verb == "extend":
            self.lease = max(self.lease, now + MINUTE)
            return True
        self.settled = (attempts, verb)
        self.crashed = self.crashed if verb == "release" else 0
        match verb:
            case "complete":
                self._end("done", now)
            case "discard":
                self._end("failed", now)
            case "fail":
                self._try_again(now)
            case "release":
                self.status, self.released = "queued", self.released + 1
            case "snooze":
                self.status, self.released, self.due = "queued", self.released + 1, now + MINUTE
        self.lease = 0
        return True

    def reclaim(self, now: int) -> bool:
        """Put back if the lease has expired; False = nothing to do."""
        if self.status != "running" or self.lease > now:
            return False
        self.crashed += 1
        self._try_again(now)
        return True

    def cancel(self, now: int) -> str | None:
        if not self.unfinished:
            return None
        self._end("cancelled", now)
        return self.status

    def retry(self, now: int, *, key_in_use: bool) -> str | None:
        if self.status not in ("failed", "cancelled") or key_in_use:
            return None
        self.status, self.released, self.due = "queued", self.attempts, max(now, self.lease)
        return self.status

    def _end(self, status: str, now: int) -> None:
        self.status, self.ended = status, now

    def _try_again(self, now: int) -> None:
        attempt = self.attempts - self.released
        self.status, self.due = "queued", now + min(3600, 10 * 2**attempt)
        if attempt >= self.max_attempts:
            self._end("failed", now)
