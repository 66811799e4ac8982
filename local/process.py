"""Child processes that never outlive the program that started them.

A `Nursery` is a temporary folder with the servers that live in it. Beside it runs a guard
(`local.guard`), which ends the servers and removes the folders when the nursery closes, and also
when this program is interrupted or killed: nobody has to catch a signal for that.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def answers(port: int) -> bool:
    """Tell whether something accepts connections at this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def as_nobody() -> str | None:
    """Name the user for servers that refuse to run as root; None where we are not root."""
    return "nobody" if os.geteuid() == 0 else None


@dataclass(frozen=True, kw_only=True)
class Child:
    """A server in a process group of its own, with its output in a file."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_until(self, ready: Callable[[], bool], *, seconds: float = 30) -> None:
        """Return once *ready* says so; raise RuntimeError with the log's end if it never does."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                end = self.log.read_text(errors="replace")[-2000:]
                sentence = (
                    f"{self.process.args!r} did not start (exit {self.process.poll()}): {end}"
                )
                raise RuntimeError(sentence)
            time.sleep(0.01)


class Nursery:
    """A temporary folder, the servers that live in it, and the guard of both.

    The folder, and each further one, belongs to *owner* (None: to us).
    """

    def __init__(self, name: str, owner: str | None) -> None:
        self._name, self._owner = name, owner
        self._children: list[Child] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-IS", GUARD], stdin=subprocess.PIPE, start_new_session=True
        )
        self.folder = self.new_folder()

    def new_folder(self, parent: Path | None = None) -> Path:
        """Make a folder that goes with the nursery, in *parent* or else the usual place."""
        folder = Path(tempfile.mkdtemp(prefix=f"pgq-{self._name}-", dir=parent))
        self._tell(f"remove {folder}")
        if self._owner is not None:
            shutil.chown(folder, self._owner)
        return folder

    def _tell(self, line: str) -> None:
        pipe = self._guard.stdin
        if pipe is not None:
            pipe.write(f"{line}\n".encode())
            pipe.flush()

    def start(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        user: str | None = None,
        stop: signal.Signals = signal.SIGTERM,
    ) -> Child:
        """Start a server in the folder; *stop* is the signal that ends its group later."""
        log = self.folder / f"{Path(argv[0]).name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                user=user,
                group=None if user is None else pwd.getpwnam(user).pw_gid,
                extra_groups=None if user is None else [],
            )
        self._tell(f"watch {process.pid} {stop.value}")
        child = Child(process=process, log=log)
        self._children.append(child)
        return child

    def run(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str], user: str | None = None
    ) -> None:
        """Run a program to its end; raise RuntimeError with its output if it fails."""
        child = self.start(argv, env=env, user=user)
        self.forget(child)
        if child.process.returncode != 0:
            raise RuntimeError(f"{argv[0]} failed: {child.log.read_text(errors='replace')}")

    def forget(self, child: Child) -> None:
        """Leave out a child that has ended, since its process id may come to be another's."""
        child.process.wait()
        self._tell(f"forget {child.process.pid}")
        self._children.remove(child)

    def close(self) -> None:
        """Have the guard end the children and remove the folders, and wait for that."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        for child in self._children:
            child.process.wait()
        self._guard.wait()


@contextmanager
def nursery(name: str, *, owner: str | None = None) -> Iterator[Nursery]:
    """Open a nursery, and close it however the block ends."""
    opened = Nursery(name, owner)
    try:
        yield opened
    finally:
        opened.close()
