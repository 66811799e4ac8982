"""What a look at the machine from outside can tell about a server."""

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

LISTENING = "0A"


def addresses(port: int) -> set[str]:
    """The addresses at which something listens on the port, from the kernel's own table."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        host, number = address.split(":")
        if state == LISTENING and int(number, 16) == port:
            found.add(socket.inet_ntoa(struct.pack("<I", int(host, 16))))
    return found


def listeners_on_ipv6(port: int) -> int:
    lines = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    return sum(line[3] == LISTENING and line[1].endswith(f":{port:04X}") for line in lines)


def is_running(pid: int) -> bool:
    """Whether the process is there, and more than an entry that nobody has collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(truth: Callable[[], bool]) -> bool:
    """Whether it becomes true within ten seconds."""
    deadline = time.monotonic() + 10
    while not truth() and time.monotonic() < deadline:
        time.sleep(0.01)
    return truth()
