"""What goes wrong in the demo, on purpose and in earnest."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from local.smtp import Mail
from pgq_core import Kick

from .app import Declined, User

ENOUGH = 15  # mails: with fewer there is no batch to be in the middle of
ESTABLISHED = "01"  # a TCP connection's state in /proc/net/tcp


@dataclass(kw_only=True)
class Faults:
    """Decide beforehand whom what happens to, so that it can be checked; count what did happen.

    `kill_at` is the number of the mail whose sender is killed (0 = none), `mail_port` the mail
    server's.
    """

    declined: frozenset[str]
    busy: frozenset[str]
    unknown: frozenset[str]
    kill_at: int
    tell: Callable[[str], None]
    mail_port: int = 0
    mails: int = 0
    killed: int = 0
    lost: int = 0

    def charge(self, user: User) -> None:
        """Be the payment, whose failure rolls the sign-up back."""
        if user.email in self.declined:
            raise Declined

    def accepted(self, _mail: Mail) -> None:
        """Kill the worker that hands the mail over, before it hears that the mail was taken.

        It holds the leases of a whole batch then: some of its jobs are done, one is in doubt, the
        others have not begun.
        """
        self.mails += 1
        if self.mails == self.kill_at:
            worker = client_of(self.mail_port)
            os.kill(worker, signal.SIGKILL)
            self.killed += 1
            self.tell(
                f"the worker with the process id {worker} is killed in the middle of its batch"
            )


def plan(users: Sequence[User], tell: Callable[[str], None]) -> Faults:
    """Choose one user in twenty to be declined, one in twenty to be told 451 once, and one 550."""

    def every_twentieth(first: int) -> frozenset[str]:
        return frozenset(user.email for user in users[first::20])

    declined, unknown = every_twentieth(2), frozenset(user.email for user in users[3:4])
    mails = len(users) - len(declined | unknown)
    return Faults(
        declined=declined,
        busy=every_twentieth(1),
        unknown=unknown,
        kill_at=5 if mails >= ENOUGH else 0,
        tell=tell,
    )


@dataclass(frozen=True, kw_only=True)
class LossyKick:
    """Lose the first kick: it is said to be sent, and is not."""

    inner: Kick
    faults: Faults

    def kick(self, queue: str, hop: int = 0) -> bool:
        """Kick, but for the first time."""
        if self.faults.lost:
            return self.inner.kick(queue, hop)
        self.faults.lost += 1
        self.faults.tell("the first kick is lost on its way")
        return True


def client_of(port: int) -> int:
    """Find a process that is connected to this port of 127.0.0.1."""
    server = f"0100007F:{port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    inode = next(line[9] for line in lines if line[2:4] == [server, ESTABLISHED])
    return next(pid for pid in pids() if f"socket:[{inode}]" in open_files(pid))


def pids() -> list[int]:
    """List the processes of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def open_files(pid: int) -> set[str]:
    """List what a process has open; nothing if it has ended or is not ours."""
    try:
        return {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return set()
