"""The command line: each command is a call or two of the library, its answer a table or JSON.

What goes wrong is one line on stderr, "pgq-core: what happened, where; what to do", and an exit
code, listed in `pgq-core --help`. What every command needs beside that is in `terminal.py`.
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from . import LambdaKick, NewJob, NoKick, Producer, Tasks, listen, queues, reaper, schedules, work
from . import migrate as apply_migrations
from .db import Connection
from .doctor import Deployment, examine
from .errors import PgqError
from .job import check_name
from .terminal import COULD_NOT, Line, answer_only, connect, database, explain, show, until_signal

MOST_DAYS = 3650  # as in Settings
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def _reader(read: Callable[[str], object]) -> Callable[..., object]:
    """Make a callback of an option that says what *read* says is wrong with its value."""

    def callback(_ctx: object, _param: object, value: str | None) -> object:
        try:
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        except OverflowError:
            raise click.BadParameter(f"{str(value)[:20]!r} is too long") from None

    return callback


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration such as 90, 15m, 2h or 3d")
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])


def _days(text: str) -> timedelta:
    if re.fullmatch(r"\d+(\.\d+)?", text) is None or float(text) > MOST_DAYS:
        raise ValueError(f"{text!r} is no number of days from 0 to {MOST_DAYS}, such as 7 or 0.5")
    return timedelta(days=float(text))


def _fallback(text: str) -> timedelta:
    fallback = timedelta.max if text == "off" else _duration(text)
    if fallback < timedelta(seconds=1):
        raise ValueError("1 s or more, or off")
    return fallback


def _named(what: str) -> Callable[..., object]:
    """Make a callback that refuses what is no name of a *what*."""

    def read(text: str) -> str:
        check_name(what, text)
        return text

    return _reader(read)


def _duration_option(*names: str, **options: Any) -> Callable[..., Any]:  # noqa: ANN401
    return click.option(*names, callback=_reader(_duration), metavar="DURATION", **options)


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Make one decorator of several options, the first shown first."""

    def decorate(command: Any) -> Any:  # noqa: ANN401 - as click's own
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


days = _reader(_days)
queue_name = _named("queue")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
kick_option = click.option(
    "--kick", "function", callback=_named("function"), help="Wake this worker (its name or ARN)."
)
job_options = _options(
    click.option("--queue", default="default", show_default=True, help="The lane."),
    click.option("--priority", type=int, default=5, show_default=True, help="0 to 9, lower first."),
    click.option("--max-attempts", type=int, default=5, show_default=True, help="Starts in all."),
)


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
    with connect() as conn:
        names = apply_migrations(conn)
    show({"applied": names}, as_json=as_json)


@cli.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show each queue: jobs ready, delayed, running, expired, failed.

    "oldest seconds" is how long the longest ready job has been waiting.
    """
    with database() as conn:
        rows = [asdict(row) for row in queues.stats(conn)]
    for row in rows:
        oldest = row.pop("oldest")
        row["oldest_seconds"] = None if oldest is None else round(oldest.total_seconds(), 3)
    show({"queues": rows}, as_json=as_json)


@cli.command()
@click.argument("task")
@click.argument("payload", default="{}")
@_duration_option("--delay", help="Not before this long from now: 90, 15m, 2h, 3d.")
@click.option(
    "--run-at",
    callback=_reader(datetime.fromisoformat),
    metavar="INSTANT",
    help="Not before this instant: ISO 8601 with offset.",
)
@job_options
@click.option("--unique-key", help="At most one unfinished job per queue and key.")
@kick_option
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
    with _wrong_usage():
        job = NewJob(task, _payload(payload), **options)
        job.encoded()
    producer = _producer(function)
    with database() as conn, producer.transaction(conn) as tx:
        [enqueued] = tx.enqueue_many([job])
    show(asdict(enqueued) | {"kick": _kicked(producer)}, as_json=as_json)


@cli.command()
@click.option("--once", is_flag=True, help="Run what is due and end.")
@click.option("--tasks", envvar="PGQ_TASKS", required=True, help="The handlers: module:attribute.")
@click.option("--queue", default="default", show_default=True, callback=queue_name)
@click.option("--batch-size", type=click.IntRange(1, 1000), default=10, show_default=True)
@_duration_option("--wait", help="With --once: wait for what falls due within this long.")
@click.option(
    "--fallback",
    callback=_reader(_fallback),
    metavar="DURATION",
    help="Without --once: look at least this often, or off. [default: 15m]",
)
@json_option
def worker(
    *,
    once: bool,
    tasks: str,
    wait: timedelta | None,
    fallback: timedelta | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - queue and batch_size
) -> None:
    """Run the jobs of a queue; PGQ_TASKS may name the handlers too.

    It stays, and listens on a direct connection (see `pgq-core notify on`); with --once it ends
    when no job is due. SIGINT or SIGTERM: finish the job, hand back the rest, end. A second one
    interrupts the job.
    """
    if (fallback if once else wait) is not None:
        wrong = "--wait goes with --once, --fallback with a worker that stays"
        raise click.UsageError(wrong, click.get_current_context())
    with answer_only(as_json=as_json), until_signal() as time_left:
        options |= {"connect": connect, "tasks": _handlers(tasks), "time_left": time_left}
        if not once:
            listen.Listener(**options, fallback=fallback or listen.FALLBACK).run()
            return
        report = work(**options, wait=wait or timedelta(0))
    show(asdict(report), as_json=as_json)


@cli.command()
@click.argument("state", type=click.Choice(["on", "off"]))
@json_option
def notify(*, state: str, as_json: bool) -> None:
    """Let each insert of jobs notify the workers that stay, or stop that."""
    with database() as conn:
        listen.notify(conn, on=state == "on")
    show({"notify": state}, as_json=as_json)


@cli.command()
@click.option("--keep-done", callback=days, metavar="DAYS", default="7", show_default=True)
@click.option("--keep-failed", callback=days, metavar="DAYS", default="30", show_default=True)
@click.option("--archive", is_flag=True, help="Move finished jobs to pgq_core.jobs_archive.")
@click.option("--queue", callback=queue_name, help="Reclaim in this queue only.")
@json_option
def reap(
    *, keep_done: timedelta, keep_failed: timedelta, archive: bool, queue: str | None, as_json: bool
) -> None:
    """Put expired leases back, and remove jobs finished so many days ago (a number, 0 to 3650).

    --keep-failed covers cancelled jobs too. The removal is always of all queues.
    """
    with database() as conn, Console(stderr=True).status("reaping"):
        back = [row.status for row in reaper.reclaim_all(conn, queue=queue)]
        removed = reaper.cleanup(conn, done=keep_done, failed=keep_failed, archive=archive)
    answer = {"reclaimed": len(back), "failed": back.count("failed"), "removed": removed}
    show(answer, as_json=as_json)


@cli.command()
@click.option("--tasks", envvar="PGQ_TASKS", help="The handlers: does each fit an invocation?")
@_duration_option("--worker-timeout", default="2m", show_default=True, help="Of an invocation.")
@_duration_option("--sweep-every", default="1h", show_default=True, help="Period of the sweep.")
@_duration_option("--suspend-after", help="When the idle database suspends; none = never.")
@click.option("--listens", is_flag=True, help="A worker stays and listens.")
@json_option
def doctor(*, tasks: str | None, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - Deployment's
    """Say what is wrong with database and deployment, and how to mend it; 1 = something fails."""
    with answer_only(as_json=as_json):
        deployment = Deployment(tasks=_handlers(tasks) if tasks else None, **options)
    with connect() as conn:
        findings = examine(conn, deployment)
    show({"findings": [asdict(one) for one in findings]}, as_json=as_json)
    if any(one.level == "fail" for one in findings):
        raise click.exceptions.Exit(COULD_NOT)


@cli.group("queues", no_args_is_help=False)
def queue_commands() -> None:
    """Set up queues: list, set, pause, resume."""


queue_commands.add_command(status, "list")


@queue_commands.command("set")
@click.argument("queue", callback=queue_name)
@click.option("--max-workers", type=click.IntRange(1, 1000), required=True)
@json_option
def set_queue(*, queue: str, max_workers: int, as_json: bool) -> None:
    """Let at most so many workers run QUEUE at a time, softly."""
    with database() as conn:
        queues.configure(conn, queue, max_workers=max_workers)
    show({"queue": queue, "max_workers": max_workers}, as_json=as_json)


@queue_commands.command("pause")
@click.argument("queue", callback=queue_name)
@json_option
def pause_queue(*, queue: str, as_json: bool) -> None:
    """Start no more jobs of QUEUE; what runs goes on."""
    with database() as conn:
        queues.pause(conn, queue)
    show({"queue": queue, "paused": True}, as_json=as_json)


@queue_commands.command("resume")
@click.argument("queue", callback=queue_name)
@kick_option
@json_option
def resume_queue(*, queue: str, function: str | None, as_json: bool) -> None:
    """Start jobs of QUEUE again."""
    with database() as conn:
        queues.resume(conn, queue)
        kicked = _kick(conn, function, queue)
    show({"queue": queue, "paused": False, "kick": kicked}, as_json=as_json)


@cli.group(no_args_is_help=False)
def cron() -> None:
    """Enqueue jobs at the times of crontab(5): add, list, pause, resume, remove."""


@cron.command("add")
@click.argument("name")
@click.argument("cron")
@click.argument("task")
@click.argument("payload", default="{}")
@click.option("--timezone", default="UTC", show_default=True, help="Whose clock CRON means.")
@job_options
@kick_option
@json_option
def add_schedule(
    *,
    payload: str,
    function: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - those of NewSchedule
) -> None:
    """Make or change the schedule NAME: jobs for TASK at the times of CRON, "0 2 * * *" and so on.

    The kick wakes a worker that arms the alarm; without one the next worker or sweep does.
    """
    with _wrong_usage():
        schedule = schedules.NewSchedule(payload=_payload(payload), **options)
    with database() as conn:
        slot = schedules.put(conn, schedule)
        kicked = _kick(conn, function, schedule.queue)
    show({"name": schedule.name, "next_at": _instant(slot), "kick": kicked}, as_json=as_json)


@cron.command("list")
@json_option
def list_schedules(*, as_json: bool) -> None:
    """Show each schedule and its next slot, in UTC."""
    with database() as conn:
        rows = [asdict(one) for one in schedules.find(conn)]
    for row in rows:
        del row["payload"], row["priority"], row["max_attempts"]
        row |= {name: row[name] and _instant(row[name]) for name in ("next_at", "fired_at")}
    show({"schedules": rows}, as_json=as_json)


@cron.command("pause")
@click.argument("name")
@json_option
def pause_schedule(*, name: str, as_json: bool) -> None:
    """Let no slot of the schedule NAME fire."""
    with database() as conn:
        _there(name, schedules.pause(conn, name))
    show({"name": name, "paused": True}, as_json=as_json)


@cron.command("resume")
@click.argument("name")
@kick_option
@json_option
def resume_schedule(*, name: str, function: str | None, as_json: bool) -> None:
    """Let the schedule NAME fire again, from its next slot on."""
    with database() as conn:
        with _wrong_usage():
            queue = _there(name, schedules.resume(conn, name))
        kicked = _kick(conn, function, str(queue))
    show({"name": name, "paused": False, "kick": kicked}, as_json=as_json)


@cron.command("remove")
@click.argument("name")
@json_option
def remove_schedule(*, name: str, as_json: bool) -> None:
    """Remove the schedule NAME; the jobs of its past slots stay."""
    with database() as conn:
        _there(name, schedules.remove(conn, name))
    show({"name": name, "removed": True}, as_json=as_json)


def _there(name: str, found: object) -> object:
    if not found:
        raise PgqError(f"there is no schedule {name!r}; see pgq-core cron list")
    return found


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


def _handlers(spec: str) -> Tasks:
    sys.path.insert(0, str(Path.cwd()))  # a script's own folder stands there, not the user's
    return Tasks.load(spec)


def _producer(function: str | None) -> Producer:
    return Producer(LambdaKick(function) if function else NoKick())


def _kick(conn: Connection, function: str | None, queue: str) -> str:
    producer = _producer(function)
    producer.kick(conn, [queue])
    return _kicked(producer)


def _kicked(producer: Producer) -> str:
    return next((result for result, count in producer.stats.items() if count), "none")


@contextmanager
def _wrong_usage() -> Iterator[None]:
    """Take what the library refuses of the arguments for wrong usage."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error), click.get_current_context()) from None


def _payload(text: str) -> Any:  # noqa: ANN401 - NewJob refuses what is no object
    try:
        return json.loads(sys.stdin.buffer.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"payload: no JSON: {error}") from None


def main() -> None:
    """Run one command and end with its exit code."""
    handler = logging.StreamHandler()
    handler.setFormatter(Line("pgq-core: %(message)s"))
    logging.basicConfig(handlers=[handler])
    try:
        code = _run(sys.argv[1:])
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - each ends as one line
        code = explain(error)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    # Not cli.main(): it answers errors and Ctrl-C in several lines.
    try:
        with cli.make_context("pgq-core", arguments) as context:
            cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0
