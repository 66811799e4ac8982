"""Both articles' statements and figures, and the same on ours: `make articles`.

Runs on a Postgres of its own, or on the server that `DATABASE_URL` names, in a temporary database.
Writes docs/benchmarks/articles.md; ends with 1 if an expectation failed.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console

from bench.articles import first, ours, second
from bench.articles.lab import Experiment, Finding, Lab, value
from bench.articles.place import scratch
from bench.articles.report import Row, page, show, show_checklist
from bench.machine import machine
from local.postgres import postgres

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "articles.md"
FAILED, USAGE, INTERRUPTED = 1, 2, 130
WIDE = 150  # columns, where there is no terminal
OURS = "The same on the statements of pgq_core"
PARTS = {
    "The first article": first.PART,
    "The second article, as far as its text goes": second.PART,
    OURS: ours.PART,
}
WRONG = (
    "no arguments are expected; DATABASE_URL, if it is set, names a server, "
    "such as postgresql://user@host/database"
)
HALF = "the role may not create databases: the statements of pgq_core are left out, no page written"


def main(arguments: list[str], environment: str) -> int:
    """Run everything on the server of the environment, or on our own; return the exit code."""
    if arguments or not readable(environment):
        return tell(WRONG, USAGE)
    try:
        with place(environment) as lab:
            return experiments(lab)
    except KeyboardInterrupt:
        return tell("interrupted; what was made is removed", INTERRUPTED)
    except (psycopg.Error, RuntimeError, OSError) as error:
        return tell(sentence(error), FAILED)


def readable(dsn: str) -> bool:
    """Tell whether it is a connection string; what it says may hold a password."""
    try:
        return bool(conninfo_to_dict(dsn)) or not dsn
    except psycopg.ProgrammingError:
        return False


def tell(what: str, code: int) -> int:
    """Say what is wrong, and return the exit code."""
    sys.stderr.write(f"articles: {what}\n")
    return code


def sentence(error: Exception) -> str:
    """Return an error as one line."""
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((said or str(error) or type(error).__name__).split())


@contextmanager
def place(dsn: str) -> Iterator[Lab]:
    """Open a place on the server, or on one that is started for it and flushes to disk."""
    if dsn:
        with scratch(dsn) as lab:
            yield lab
    else:
        with postgres(durable=True) as server, scratch(server.dsn()) as lab:
            yield lab


def experiments(lab: Lab) -> int:
    """Try everything, show it and write the page; return the exit code."""
    console, began = Console(), time.perf_counter()
    if not console.is_terminal:
        console.width = WIDE
    found: dict[str, list[Row]] = {}
    for title, part in PARTS.items():
        if lab.whole or title != OURS:
            found[title] = [(of, tried(console, of, lab)) for of in part]
            show(console, title, found[title])
    show_checklist(console)
    seconds = time.perf_counter() - began
    if lab.whole:
        with lab.sessions() as [conn]:
            PAGE.write_text(page(found, machine(value(conn, "SHOW server_version")), seconds))
    else:
        tell(HALF, 0)
    return 0 if all(one.holds for rows in found.values() for _, one in rows) else FAILED


def tried(console: Console, of: Experiment, lab: Lab) -> Finding:
    """Try one experiment; one that breaks off is a failed expectation."""
    with console.status(of.says):
        try:
            return of.run(lab)
        except Exception as error:  # noqa: BLE001 - the row says what happened
            return Finding(sentence(error), holds=False, why="it broke off")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # what fails on purpose
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:], os.environ.get("DATABASE_URL", "")))
