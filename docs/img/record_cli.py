"""Record the picture of the command line, from the top folder: `python -m docs.img.record_cli`.

Real commands on a Postgres of their own. What differs from run to run is made the same: the clock.
"""

# ruff: noqa: INP001

import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.text import Text

from local.postgres import postgres

PICTURE = Path(__file__).with_name("cli.svg")
COLUMNS = 110
TASKS = """
from pgq_core import Tasks

tasks = Tasks()
tasks.handler("send_welcome")(lambda job: None)

@tasks.handler("send_invoice", max_attempts=1)
def send_invoice(job):
    raise LookupError(f"no order {job.payload['order']}")
"""
COMMANDS = """
pgq-core migrate --tasks shop:tasks
pgq-core enqueue send_welcome '{"email": "ada@example.com"}' --priority 2
pgq-core enqueue send_invoice '{"order": 7}' --max-attempts 1
pgq-core worker --once --tasks shop:tasks 2>worker.log
pgq-core jobs list
pgq-core jobs retry 2
pgq-core doctor --suspend-after 5m --sweep-every 1m --tasks shop:tasks
"""
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
BEGIN = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


def steady(shown: str, began: datetime) -> str:
    """Move instants to a day on which it always began at the same minute; a schedule's is fixed."""

    def moved(match: re.Match[str]) -> str:
        hours = round((datetime.fromisoformat(match[0]) - began) / timedelta(hours=1))
        at = BEGIN + timedelta(hours=hours) if hours in (0, 2) else BEGIN + timedelta(hours=16)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    return INSTANT.sub(moved, shown)


def run(command: str, folder: str, dsn: str) -> str:
    """Return what *command* prints on a terminal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "DATABASE_URL": dsn, "COLUMNS": str(COLUMNS)}
    ended = subprocess.run(  # noqa: S603 - the commands above
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=env | {"FORCE_COLOR": "1", "TERM": "xterm-256color"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return ended.stdout


def main() -> None:
    """Run the commands and draw what they print."""
    console = Console(record=True, width=COLUMNS, force_terminal=True)
    began = datetime.now(UTC)
    with postgres() as server, tempfile.TemporaryDirectory() as folder:
        Path(folder, "shop.py").write_text(TASKS)
        for command in COMMANDS.strip().splitlines():
            console.print(Text.assemble(("$ ", "green"), (command, "bold")))
            console.print(Text.from_ansi(steady(run(command, folder, server.dsn()), began)))
    picture = console.export_svg(title="pgq-core")
    # The viewer's own font: a picture loads nothing.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))


if __name__ == "__main__":
    main()
