"""What surrounds every command: the database, the answer, what went wrong, the signals.

This is an edge: here the environment is read, the database opened, logs are formatted and signals
caught.
"""

import json
import logging
import os
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import click
import psycopg
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import address
from .db import Connection
from .errors import ConfigError, PgqError
from .migrate import check

Answer = Mapping[str, Any]

COULD_NOT, WRONG_USAGE, INTERRUPTED = 1, 2, 130

CONNECT_TIMEOUT = 10  # s: psycopg's own is 130; a database that has to wake up may need 40
NO_LIMIT = timedelta.max  # as work() is told it
CODE = "pgq_core.code"  # in a context: what the command ends with, its answer shown
WIDE = 10_000  # columns: more than any table needs

#: What to do, by the name of a database error's class or of a base of it.
_REMEDIES = {
    "InsufficientPrivilege": "use a role that may do this, or have it granted",
    "ReadOnlySqlTransaction": "name the primary, not a replica",
    "OperationalError": "check that the database is up and named by DATABASE_URL or PG*",
}
_STYLES = {"done": "green", "ok": "green", "failed": "red", "fail": "red", "warn": "yellow"}
_SENTENCES = {"error", "remedy", "seen", "why"}  # columns
_LOG_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime"}


@contextmanager
def until_signal(what: str = "job") -> Iterator[Callable[[], timedelta]]:
    """Yield the time left to work(): none after the first SIGINT or SIGTERM.

    Then it ends as at a deadline: after the job (or *what* else is at work), the rest handed back.
    The second one interrupts.
    """
    stopped, ours = False, os.getpid()

    def stop(number: int, _: object) -> None:
        nonlocal stopped
        if os.getpid() != ours:  # a handler's child, which means to end at once
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if stopped:
            raise KeyboardInterrupt
        stopped = True
        with suppress(OSError):  # nobody may be reading
            os.write(2, f"pgq-core: finishing the {what}; a second signal interrupts it\n".encode())

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: timedelta(0) if stopped else NO_LIMIT
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def steadily(what: str) -> Iterator[Callable[[], timedelta]]:
    """Yield as `until_signal`, to be asked before each *what*, and count them on a terminal.

    A command that a signal ends early ends with 130, its answer shown.
    """
    begun = count(1)
    with until_signal(what) as time_left, Console(stderr=True).status(what) as shown:

        def time_for_one_more() -> timedelta:
            shown.update(f"{what} {next(begun):,}")
            return time_left()

        yield time_for_one_more
        if not time_left():
            click.get_current_context().meta[CODE] = INTERRUPTED


@contextmanager
def answer_only(*, as_json: bool) -> Iterator[None]:
    """Keep stdout for the JSON document: what handlers and their children print goes to stderr."""
    if not as_json:
        yield
        return
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        click.echo(nl=False)  # flushes what was printed
        os.dup2(stdout, 1)
        os.close(stdout)


@contextmanager
def database() -> Iterator[Connection]:
    """Open the database and make sure that its schema and this code fit."""
    with connect() as conn:
        check(conn)
        yield conn


def connect() -> Connection:
    """Open the database that the environment names; libpq reads the PG* variables by itself."""
    parts = address.read(os.environ.get("DATABASE_URL", ""))
    return address.connect(
        parts,
        application_name="pgq/cli",
        connect_timeout=_connect_timeout(parts),
    )


def _connect_timeout(parts: Mapping[str, Any]) -> int:
    named = parts.get("connect_timeout")
    seconds = str(named or os.environ.get("PGCONNECT_TIMEOUT") or CONNECT_TIMEOUT)
    if re.fullmatch(r"-?[0-9]{1,9}", seconds) is None:
        where = "connect_timeout in DATABASE_URL" if named else "PGCONNECT_TIMEOUT"
        raise ConfigError(f"{where} is wrong: expected a whole number of seconds")
    return int(seconds)


def show(answer: Answer, *, as_json: bool) -> None:
    """Print *answer* as one JSON document; or its rows as a table, and the rest line by line."""
    if as_json:
        click.echo(json.dumps(answer, default=_plain))
        return
    [(name, rows), *_] = answer.items()
    console = Console(highlight=False)
    if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
        _print_rows(console, rows)
        answer = {fact: answer[fact] for fact in answer if fact != name}
    if answer:
        console.print(_lines(answer), soft_wrap=True)


def _print_rows(console: Console, rows: Sequence[Answer]) -> None:
    """Print a table, or each row line by line where the terminal is too narrow for one."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    columns = {name: [_cell(name, row[name], "\\n") for row in rows] for name in rows[0]}
    for name, cells in columns.items():  # only sentences are broken into lines
        least = None if name in _SENTENCES else max(cell.cell_len for cell in cells)
        table.add_column(_label(name), min_width=least, overflow="fold")
    for shown in zip(*columns.values(), strict=True):
        table.add_row(*shown)
    if not console.width or not (console.is_terminal or "COLUMNS" in os.environ):
        console.width = WIDE  # a pipe has no width
    measured = console.measure(table, options=console.options.update(width=WIDE))
    if measured.maximum + len(columns) <= console.width:
        table.padding = (0, 2, 0, 0)
    fits = measured.minimum <= console.width
    console.print(table if fits else Text("\n\n").join(map(_lines, rows)), soft_wrap=not fits)


def _label(name: str) -> str:
    return name.replace("_", " ")


def _lines(row: Answer) -> Text:
    indented = "\n" + " " * 16
    return Text("\n").join(
        Text(f"{_label(name):<15} ") + _cell(name, row[name], indented) for name in row
    )


def _cell(name: str, value: object, newline: str) -> Text:
    text = _text(value).replace("\n", newline)
    return Text(text, _STYLES.get(text, "") if name in ("status", "level") else "")


def _text(value: object) -> str:
    """Return *value* as people read it, in lines that cannot steer the terminal."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(_text, value)) or "none"
        case datetime() | timedelta():
            return str(_plain(value)).replace("+00:00", "Z")
        case _:
            return "\n".join(map(_printable, str(value).split("\n")))


def _plain(value: datetime | timedelta) -> str | float:
    """Return what JSON has no word for: an instant, in UTC, or a time, in seconds."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="seconds")
    return round(value.total_seconds(), 3)


def _printable(text: str) -> str:
    """Keep what others stored from steering the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Line(logging.Formatter):
    """Print a log record with the facts that came in its extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return "pgq-core: message (fact=value ...)", and the traceback if there is one."""
        facts = [f"{k}={v}" for k, v in vars(record).items() if k not in _LOG_FIELDS]
        head, *rest = super().format(record).split("\n")
        head = f"{head} ({' '.join(facts)})" if facts else head
        return "\n".join(map(_printable, (head, *rest)))


def explain(error: BaseException) -> int:
    """Print what went wrong in one line; return the exit code."""
    if isinstance(error, OSError):  # stdout is full: Python must not flush it once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code, sentence = _sentence(error)
    click.echo(f"pgq-core: {_printable(' '.join(sentence.split()))}", err=True)
    return code


def _sentence(error: BaseException) -> tuple[int, str]:
    match error:
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else "pgq-core"
            return WRONG_USAGE, f"{error.format_message().rstrip('.')}; see {where} --help"
        case ConfigError():
            return WRONG_USAGE, str(error)
        case PgqError() | OSError() | ImportError():
            return COULD_NOT, str(error)
        case psycopg.Error():
            names = [base.__name__ for base in type(error).__mro__]
            remedy = next((_REMEDIES[n] for n in names if n in _REMEDIES), "see the server's log")
            # Its primary message only: the detail may show a row, and with it a payload.
            return COULD_NOT, f"{error.diag.message_primary or error}; {remedy}"
        case KeyboardInterrupt() | click.Abort():
            return (
                INTERRUPTED,
                "interrupted: what had begun was rolled back; a job's attempt failed",
            )
        case _:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({Path(frame.filename).name}, {frame.lineno})"
            return COULD_NOT, f"unexpected {what}; please report it"
