"""What a shell script has: a command line, its answer as a document or one line of error."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

Run = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-m", "pgq_core"]
COLOURS = ("COLUMNS", "NO_COLOR", "FORCE_COLOR")
SECRET = "s3cret"  # noqa: S105 - what must never be shown

JOBS = """
import time
from pathlib import Path
from pgq_core import Tasks

tasks = Tasks()
no_tasks = 1

@tasks.handler("greet")
def greet(job):
    Path("greeted").write_text(job.payload["name"])

@tasks.handler("fail")
def fail(job):
    raise RuntimeError("no luck")

@tasks.handler("slow")
def slow(job):
    Path("started").touch()
    while not Path("go").exists():
        time.sleep(0.01)
"""


def environment(dsn: str = "") -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "AWS_", *COLOURS))}
    return kept | {
        "DATABASE_URL": dsn,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    }


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def the_error(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Return the one line on stderr; nothing is on stdout then."""
    assert (done.returncode, done.stdout) == (code, ""), done
    assert re.fullmatch(r"pgq-core: [^\n]+\n", done.stderr), done.stderr
    assert SECRET not in done.stderr
    return done.stderr


def statuses(conn: psycopg.Connection) -> list[tuple[str, int, int]]:
    return conn.execute(
        "SELECT status, attempts, released FROM pgq_core.jobs ORDER BY id"
    ).fetchall()


def start_slow_worker(here: Run, dsn: str, folder: Path) -> subprocess.Popen[str]:
    """Start a worker and wait until the first of three jobs is running."""
    for _ in range(3):
        document(here("enqueue", "slow", "--json"))
    worker = subprocess.Popen(
        [*COMMAND, "worker", "--once", "--tasks=jobs:tasks", "--json"],
        cwd=folder,
        env=environment(dsn),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 20
    while not (folder / "started").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return worker


def terminal(columns: int, dsn: str, *arguments: str, typed: bytes = b"", code: int = 0) -> str:
    """Return what a command prints on a terminal of so many columns."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(dsn) | {"TERM": "xterm"},
        stdin=child,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    os.write(parent, typed)
    shown = b""
    try:
        while chunk := os.read(parent, 4096):
            shown += chunk
    except OSError:  # Linux says so when the other side has gone
        pass
    os.close(parent)
    assert process.wait(20) == code, shown
    return shown.decode().replace("\r", "")
