"""Ends a program's children and removes their folders once the program is gone, however it went.

Started by `local.process` with a pipe as its standard input, and that pipe's end is the signal: it
comes when the program says goodbye, and just as well when it was killed.

Lines it understands: `remove FOLDER`, `watch PID SIGNAL` (PID leads a process group), `forget PID`.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 5.0


def alive(group: int) -> bool:
    """Tell whether a process of the group still runs; one that only waits to be collected does not.

    Some machines' first process collects the dead every two seconds only.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, leader = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has just gone
            continue
        if int(leader) == group and state not in "XZ":
            return True
    return False


def send(group: int, number: int) -> None:
    """Signal a group, if it is there."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def end(groups: dict[int, int]) -> None:
    """Signal each group as it wishes; kill what is left after five seconds."""
    for group, number in groups.items():
        send(group, number)
    deadline = time.monotonic() + PATIENCE
    while any(map(alive, groups)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for group in filter(alive, groups):
        send(group, signal.SIGKILL)


def main() -> None:
    """Keep the lists until the input ends, then end the groups and remove the folders."""
    folders: list[str] = []
    groups: dict[int, int] = {}
    for line in sys.stdin:
        match line.rstrip("\n").split(" ", 1):
            case ["remove", folder]:
                folders.append(folder)
            case ["watch", who]:
                pid, number = who.split()
                groups[int(pid)] = int(number)
            case ["forget", pid]:
                groups.pop(int(pid), None)
    end(groups)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
