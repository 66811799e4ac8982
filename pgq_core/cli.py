"""The command line: each command is a call or two of the library, its answer a table or JSON.

What goes wrong is one line on stderr, "pgq-core: what happened, where; what to do", and an exit
code, listed in `pgq-core --help`. This is an edge: here the environment is read, the database
opened, logs are formatted and signals caught.
"""

import json
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console
from rich.table import Table

from . import LambdaKick, NewJob, NoKick, Producer, Tasks, queues, reaper, work
from . import migrate as apply_migrations
from .db import Connection
from .errors import ConfigError, PgqError
from .job import check_name
from .migrate import check

COULD_NOT, WRONG_USAGE, INTERRUPTED = 1, 2, 130

CONNECT_TIMEOUT = 10  # s: psycopg's own is 130; a database that has to wake up may need 40
NO_LIMIT = timedelta(days=1)  # as work() is told it: no invocation lasts as long
RECLAIM = 1000  # jobs of one statement
WIDE = 10_000  # columns: more than any table needs

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_BAD_DSN = (
    "DATABASE_URL is no connection string: expected postgresql://user:password@host:5432/database, "
    "special characters of the password as %-codes"
)
#: What to do, by the name of a database error's class or of a base of it.
_REMEDIES = {
    "InsufficientPrivilege": "use a role that may do this, or have it granted",
    "ReadOnlySqlTransaction": "name the primary, not a replica",
    "OperationalError": "check that the database is up and named by DATABASE_URL or PG*",
}
_LOG_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime"}


def _reader(read: Callable[[str], object]) -> Callable[..., object]:
    """Make a callback of an option that says what *read* says is wrong with its value."""

    def callback(_ctx: object, _param: object, value: str | None) -> object:
        try:
            return None if value is None else read(value)
        except (ValueError, OverflowError) as error:
            raise click.BadParameter(str(error)) from None

    return callback


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration such as 90, 15m, 2h or 3d")
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])


def _queue_name(text: str) -> str:
    check_name("queue", text)
    return text


DAYS = click.FloatRange(0, 36_500)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,
    epilog="""\b
    DATABASE_URL names the database, or else PGHOST, PGUSER, PGDATABASE, ...

    \b
    Exit codes:
      0    done
      1    could not: no database, a schema that does not fit, ...
      2    wrong usage or a wrong setting
      130  interrupted""",
)
@click.version_option(package_name="pgq-core", message="%(prog)s %(version)s")
def cli() -> None:
    """Look after a Postgres job queue."""


@cli.command()
@json_option
def migrate(*, as_json: bool) -> None:
    """Create or update the schema pgq_core."""
    with _connect() as conn:
        names = apply_migrations(conn)
    _show({"applied": names}, as_json=as_json)


@cli.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show each queue: jobs ready, delayed, running, expired, failed.

    "oldest seconds" is how long the longest ready job has been waiting.
    """
    with _database() as conn:
        rows = [asdict(row) for row in queues.stats(conn)]
    for row in rows:
        oldest = row.pop("oldest")
        row["oldest_seconds"] = None if oldest is None else round(oldest.total_seconds(), 3)
    _show({"queues": rows}, as_json=as_json)


@cli.command()
@click.argument("task")
@click.argument("payload", default="{}")
@click.option("--queue", default="default", show_default=True, help="The lane.")
@click.option(
    "--delay",
    callback=_reader(_duration),
    metavar="DURATION",
    help="Not before this long from now: 90, 15m, 2h, 3d.",
)
@click.option(
    "--run-at",
    callback=_reader(datetime.fromisoformat),
    metavar="INSTANT",
    help="Not before this instant: ISO 8601 with offset.",
)
@click.option("--priority", type=int, default=5, show_default=True, help="0 to 9, lower first.")
@click.option("--max-attempts", type=int, default=5, show_default=True, help="Starts in all.")
@click.option("--unique-key", help="At most one unfinished job per queue and key.")
@click.option("--kick", "function", help="Wake this worker function then (its name or ARN).")
@json_option
def enqueue(
    *,
    task: str,
    payload: str,
    function: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - those of NewJob
) -> None:
    """Put in one job for TASK; PAYLOAD is a JSON object, or - to read it from standard input.

    A job with the same unique key that is not finished yet is left as it is (inserted: no). That
    the kick failed is no error: the job is in, and waits for the next kick or sweep.
    """
    try:
        job = NewJob(task, _payload(payload), **options)
        job.encoded()
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error), click.get_current_context()) from None
    producer = Producer(LambdaKick(function) if function else NoKick())
    with _database() as conn, producer.transaction(conn) as tx:
        [enqueued] = tx.enqueue_many([job])
    kicked = next((result for result, count in producer.stats.items() if count), "none")
    _show(asdict(enqueued) | {"kick": kicked}, as_json=as_json)


@cli.command()
@click.option("--once", is_flag=True, help="Run what is due and end.")
@click.option("--tasks", envvar="PGQ_TASKS", required=True, help="The handlers: module:attribute.")
@click.option("--queue", default="default", show_default=True, callback=_reader(_queue_name))
@click.option("--batch-size", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.option(
    "--wait",
    callback=_reader(_duration),
    metavar="DURATION",
    default="0",
    show_default=True,
    help="Wait for what falls due within this long.",
)
@json_option
def worker(
    *, once: bool, tasks: str, queue: str, batch_size: int, wait: timedelta, as_json: bool
) -> None:
    """Run the due jobs of a queue; PGQ_TASKS may name the handlers too.

    SIGINT or SIGTERM: finish the job, hand back the rest, end. A second one interrupts the job.
    """
    if not once:
        raise click.UsageError("add --once: a worker that listens is not there yet")
    sys.path.insert(0, str(Path.cwd()))  # a script's own folder stands there, not the user's
    handlers = Tasks.load(tasks)
    with _until_signal() as time_left:
        report = work(
            _connect,
            handlers,
            queue=queue,
            batch_size=batch_size,
            time_left=time_left,
            wait=wait,
        )
    _show(asdict(report), as_json=as_json)


@cli.command()
@click.option("--keep-done", type=DAYS, metavar="DAYS", default=7, show_default=True)
@click.option("--keep-failed", type=DAYS, metavar="DAYS", default=30, show_default=True)
@click.option("--archive", is_flag=True, help="Move finished jobs to pgq_core.jobs_archive.")
@click.option("--queue", callback=_reader(_queue_name), help="Reclaim in this queue only.")
@json_option
def reap(
    *, keep_done: float, keep_failed: float, archive: bool, queue: str | None, as_json: bool
) -> None:
    """Put expired leases back, and remove jobs finished so many days ago.

    --keep-failed covers cancelled jobs too. The removal is always of all queues.
    """
    done, failed = timedelta(days=keep_done), timedelta(days=keep_failed)
    with _database() as conn, Console(stderr=True).status("reaping"):
        back = [row.status for rows in _reclaim(conn, queue) for row in rows]
        removed = reaper.cleanup(conn, done=done, failed=failed, archive=archive)
    answer = {"reclaimed": len(back), "failed": back.count("failed"), "removed": removed}
    _show(answer, as_json=as_json)


def _reclaim(conn: Connection, queue: str | None) -> Iterator[Sequence[reaper.Reclaimed]]:
    while rows := reaper.reclaim(conn, queue=queue, limit=RECLAIM):
        yield rows


def _payload(text: str) -> Any:  # noqa: ANN401 - NewJob refuses what is no object
    try:
        return json.loads(sys.stdin.buffer.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"payload: no JSON: {error}") from None


@contextmanager
def _until_signal() -> Iterator[Callable[[], timedelta]]:
    """Yield the time left to work(): none after the first SIGINT or SIGTERM.

    Then it ends as at a deadline: after the job, the rest handed back. The second one interrupts.
    """
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True
        os.write(2, b"pgq-core: finishing the job; a second signal interrupts it\n")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: timedelta(0) if stopped else NO_LIMIT
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _database() -> Iterator[Connection]:
    """Open the database and make sure that its schema and this code fit."""
    with _connect() as conn:
        check(conn)
        yield conn


def _connect() -> Connection:
    """Open the database that the environment names; libpq reads the PG* variables by itself."""
    dsn = os.environ.get("DATABASE_URL", "")
    try:
        parts = conninfo_to_dict(dsn)
        if _is_torn(parts):
            raise ConfigError(_BAD_DSN)
        seconds = parts.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
        return psycopg.connect(
            dsn,
            autocommit=True,
            prepare_threshold=None,
            application_name="pgq/cli",
            connect_timeout=seconds or CONNECT_TIMEOUT,
        )
    except psycopg.ProgrammingError:  # its text would show the password
        raise ConfigError(_BAD_DSN) from None


def _is_torn(parts: Mapping[str, Any]) -> bool:
    """Tell whether a bare @ or / in the password has cut a URL in the wrong place.

    Then a piece of the password passes for a host, a port or a database, and messages show it.
    """
    names = f"{parts.get('host', '')}{parts.get('dbname', '')}"
    return "@" in names or re.fullmatch(r"[\d,]*", str(parts.get("port", ""))) is None


def _show(answer: Mapping[str, Any], *, as_json: bool) -> None:
    """Print *answer* as one JSON document, as a table of its rows, or line by line."""
    if as_json:
        click.echo(json.dumps(answer))
    elif rows := answer.get("queues"):
        _print_rows(rows)
    else:
        click.echo(_lines(answer))


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table, or each row line by line where the terminal is too narrow for one."""
    table = Table(*map(_label, rows[0]), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(_text, row.values()))
    console = Console(markup=False, highlight=False)
    wide = console.options.update(width=WIDE)
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console.width = WIDE  # a pipe has no width
    if console.measure(table, options=wide).minimum <= console.width:
        console.print(table)
    else:
        click.echo("\n\n".join(map(_lines, rows)))


def _lines(row: Mapping[str, Any]) -> str:
    return "\n".join(f"{_label(name):<15} {_text(value)}" for name, value in row.items())


def _label(name: str) -> str:
    return name.replace("_", " ")


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(_text, value)) or "none"
        case _:
            return _printable(str(value))


def _printable(text: str) -> str:
    """Keep what others stored from steering the terminal."""
    return text if text.isprintable() else ascii(text)


class _Line(logging.Formatter):
    """Print a log record with the facts that came in its extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return "pgq-core: message (fact=value ...)", and the traceback if there is one."""
        facts = [f"{k}={v}" for k, v in vars(record).items() if k not in _LOG_FIELDS]
        text = super().format(record)
        head, _, rest = text.partition("\n")
        head = f"{head} ({' '.join(facts)})" if facts else head
        return f"{head}\n{rest}" if rest else head


def main() -> None:
    """Run one command and end with its exit code."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Line("pgq-core: %(message)s"))
    logging.basicConfig(handlers=[handler])
    try:
        code = _run(sys.argv[1:])
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - each ends as one line
        code = _explain(error)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    # Not cli.main(): it answers errors and Ctrl-C in several lines.
    try:
        with cli.make_context("pgq-core", arguments) as context:
            cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def _explain(error: BaseException) -> int:
    """Print what went wrong in one line; return the exit code."""
    if isinstance(error, OSError):  # stdout is full or closed: Python must not flush it once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not isinstance(error, BrokenPipeError):  # whoever reads has enough: nothing to be told
        line = _printable(" ".join(_sentence(error).split()))
        click.echo(f"pgq-core: {line}", err=True)
    match error:
        case click.UsageError() | ConfigError():
            return WRONG_USAGE
        case KeyboardInterrupt():
            return INTERRUPTED
        case _:
            return COULD_NOT


def _sentence(error: BaseException) -> str:
    match error:
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else "pgq-core"
            return f"{error.format_message().rstrip('.')}; see {where} --help"
        case PgqError() | OSError():
            return str(error)
        case psycopg.Error():
            names = [base.__name__ for base in type(error).__mro__]
            remedy = next((_REMEDIES[n] for n in names if n in _REMEDIES), "see the server's log")
            # Its primary message only: the detail may show a row, and with it a payload.
            return f"{error.diag.message_primary or error}; {remedy}"
        case KeyboardInterrupt():
            return "interrupted; what had begun was rolled back or handed back"
        case _:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}, line {frame.lineno}"
            return f"unexpected {type(error).__name__}: {error} ({place}); please report it"
