"""The command line: each command is a call or two of the library, its answer a table or JSON.

What goes wrong is one line on stderr, "pgq-core: what happened, where; what to do", and an exit
code, listed in `pgq-core --help`. What every command needs beside that is in `terminal.py`.
"""

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import wraps
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Any

import click

from . import LambdaKick, NoKick, Producer, Tasks, jobs, listen, queues, reaper, schedules, terminal
from .db import Connection
from .doctor import Deployment, examine
from .errors import PgqError
from .job import MAX_KEY, MAX_NAME, Job, NewJob, check_text
from .migrate import migrate as apply_migrations
from .worker import RESERVE, START, DrainReport, work

Answer = dict[str, Any]
Act = Callable[[Connection, int], str | None]

MOST_DAYS = 3650  # as in Settings
ASKED = ("id", "queue", "task", "status", "attempt", "max_attempts")  # of a job, before the rest
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Value(click.ParamType):
    """Be what a function reads from the command line, refused in its own words."""

    def __init__(self, read: Callable[[str], object]) -> None:
        """Take the function; the help shows its name."""
        self.name, self.read = read.__name__, read

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return what it makes of *value*."""
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def duration(text: str) -> timedelta:
    """Read a time such as 2h."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd]?)", text)
    if match is None:
        raise ValueError(f"{text[:20]!r} is no duration such as 90, 15m, 2h or 3d (9 digits)")
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])


@Value
def days(text: str) -> timedelta:
    """Read a number of days."""
    if re.fullmatch(r"\d+(\.\d+)?", text) is None or float(text) > MOST_DAYS:
        raise ValueError(f"{text!r} is no number of days from 0 to {MOST_DAYS}, such as 7 or 0.5")
    return timedelta(days=float(text))


@Value
def fallback(text: str) -> timedelta:
    """Read how often a listener looks by itself."""
    time = timedelta.max if text == "off" else duration(text)
    if time < timedelta(seconds=1):
        raise ValueError("1 s or more, or off")
    return time


@Value
def payload(text: str) -> object:
    """Read JSON; NewJob refuses what is no object."""
    try:
        return json.loads(click.get_binary_stream("stdin").read() if text == "-" else text)
    except (ValueError, RuntimeError) as error:  # too deep, or no standard input
        raise ValueError(f"payload: no JSON: {error}") from None


def _name(what: str, longest: int = MAX_NAME) -> Value:
    def text(given: str) -> str:
        check_text(what, given, longest)
        return given

    return Value(text)


def _option(*names: str, **settings: Any) -> click.Option:  # noqa: ANN401 - click's own
    return click.Option(names, show_default=True, **settings)


# Parameters of several commands.
QUEUE = click.Argument(["queue"], type=_name("queue"))
NAME = click.Argument(["name"], type=_name("name"))
TASK = click.Argument(["task"])
ID = click.IntRange(1, 2**63 - 1)
PAYLOAD = click.Argument(["payload"], type=payload, default="{}")
JSON = _option("--json", "as_json", is_flag=True, help="Print one JSON document.")
YES = _option("--yes", is_flag=True, help="Do not ask.")
NEW = _option("--new", is_flag=True, help="The queue has had no job yet.")
KICK = _option("--kick", type=_name("function"), help="Wake this worker (its name or ARN).")
JOB = (
    _option("--queue", default="default", help="The lane."),
    _option("--priority", type=int, default=5, help="0 to 9, lower first."),
    _option("--max-attempts", type=int, default=5, help="Starts in all."),
)
OF = (
    _option("--queue", type=_name("queue"), help="Jobs of this queue."),
    _option("--task", type=_name("task"), help="Jobs for this task."),
)
KEEP = (
    _option("--keep-done", "done", type=days, default="7", help="From their end."),
    _option("--keep-failed", "failed", type=days, default="30", help="Cancelled ones, too."),
    _option("--archive", is_flag=True, help="Move jobs to pgq_core.jobs_archive instead."),
)


def command(
    group: click.Group, *params: click.Parameter, name: str | None = None, opens: bool = True
) -> Callable[[Callable[..., Answer]], click.Command]:
    """Make a function a command of *group*: it gets the database, and its answer is shown."""

    def decorate(act: Callable[..., Answer]) -> click.Command:
        @wraps(act)
        def run(*, as_json: bool, **given: object) -> int:
            database = terminal.database if opens else nullcontext
            with terminal.answer_only(as_json=as_json), database() as conn:
                answer = act(conn, **given) if opens else act(**given)
            terminal.show(answer, as_json=as_json)
            return int(click.get_current_context().meta.get(terminal.CODE, 0))

        made: click.Command = group.command(name, params=[*params])(run)
        made.params.append(JSON)
        return made

    return decorate


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(package_name="pgq-core", message="%(prog)s %(version)s")
def cli() -> None:
    """Look after a Postgres job queue.

    DATABASE_URL names the database, or else PGHOST, PGUSER, PGDATABASE, ...

    \b
    Exit codes:
      0    done
      1    could not: no database, a schema that does not fit, a job that is not there, ...
      2    wrong usage or a wrong setting
      130  interrupted
    """  # noqa: D301 - click's mark for what it must not wrap


@command(cli, KICK, opens=False)
@click.option("--tasks", envvar="PGQ_TASKS", help="The handlers: module:attribute.")
def migrate(*, tasks: str | None, kick: str | None) -> Answer:
    """Create or update the schema pgq_core; with --tasks, the schedules of the code, too.

    Those are `@tasks.cron`; the kick wakes a worker that arms their alarms. PGQ_TASKS may name the
    handlers, as it does for the function that migrates.
    """
    if kick and not tasks:
        raise click.UsageError("--kick goes with --tasks: the queues of its schedules are kicked")
    registry = _handlers(tasks) if tasks else None
    with terminal.connect() as conn:
        answer: Answer = {"applied": apply_migrations(conn)}
        if registry is not None:
            names = schedules.sync(conn, registry.schedules)
            answer |= {"scheduled_queues": names, "kick": _kick(conn, kick, *names)}
        return answer


@command(cli)
def status(conn: Connection) -> Answer:
    """Show each queue: jobs ready, delayed, running, expired, failed.

    "oldest seconds" is how long the longest ready job has been waiting.
    """
    rows = [asdict(row) for row in queues.stats(conn)]
    return {"queues": [row | {"oldest_seconds": row.pop("oldest")} for row in rows]}


@command(cli, TASK, PAYLOAD, *JOB, KICK, opens=False)
@click.option("--delay", type=Value(duration), help="Not before this long from now: 15m, 2h, 3d.")
@click.option("--run-at", type=Value(datetime.fromisoformat), metavar="INSTANT", help="ISO 8601.")
@click.option("--unique-key", help="At most one unfinished job per queue and key.")
def enqueue(*, kick: str | None, **options: Any) -> Answer:  # noqa: ANN401 - those of NewJob
    """Put in one job for TASK; PAYLOAD is a JSON object, or - to read it from standard input.

    It starts not before --run-at, with its offset from UTC, or --delay. An unfinished job with the
    same unique key is left as it is (inserted: no). That the kick failed is no error: the job is
    in, and waits for the next kick or sweep.
    """
    job = _as_given(NewJob, **options)
    _as_given(job.encoded)
    producer = _producer(kick)
    with terminal.database() as conn, producer.transaction(conn) as tx:
        [enqueued] = tx.enqueue_many([job])
    return asdict(enqueued) | {"kick": _kicked(producer)}


@command(cli, opens=False)
@click.option("--once", is_flag=True, help="Run what is due and end.")
@click.option("--tasks", envvar="PGQ_TASKS", required=True, help="The handlers: module:attribute.")
@click.option("--queue", default="default", show_default=True, type=_name("queue"))
@click.option("--batch-size", type=click.IntRange(1, 1000), default=10, help="Of a claim. [10]")
@click.option("--wait", type=Value(duration), help="With --once: for what falls due until then.")
@click.option("--fallback", type=fallback, help="Else: look at least this often, or off. [15m]")
def worker(*, once: bool, tasks: str, wait: Any, fallback: Any, **options: Any) -> Answer:  # noqa: ANN401
    """Run the jobs of a queue; PGQ_TASKS may name the handlers too.

    It stays, and listens on a direct connection (see `pgq-core notify on`); with --once it ends
    when no job is due. SIGINT or SIGTERM: finish the job, hand back the rest, end, and say what was
    done. A second one interrupts the job.
    """
    if (fallback if once else wait) is not None:
        raise click.UsageError("--wait goes with --once, --fallback with a worker that stays")
    total = Counter(asdict(DrainReport()))
    options |= {"connect": terminal.connect, "tasks": _handlers(tasks)}
    options["report"] = lambda one: total.update(asdict(one))
    with terminal.until_signal() as time_left:
        if once:
            work(**options, time_left=time_left, wait=wait or timedelta(0))
        else:
            listen.logger.setLevel(logging.INFO)  # it says that it listens
            fallback = fallback or listen.FALLBACK
            listen.Listener(**options, time_left=time_left, fallback=fallback).run()
    return total


@command(cli)
@click.argument("state", type=click.Choice(["on", "off"]))
def notify(conn: Connection, *, state: str) -> Answer:
    """Let each insert of jobs notify the workers that stay, or stop that."""
    listen.notify(conn, on=state == "on")
    return {"notify": state}


@command(cli, *KEEP)
@click.option("--queue", type=_name("queue"), help="Reclaim in this queue only.")
def reap(conn: Connection, *, queue: str | None, **kept: Any) -> Answer:  # noqa: ANN401 - cleanup's
    """Do what the reaper does, for a timer of your own: put expired leases back, then clean up.

    It does not ask. The cleanup is that of `pgq-core cleanup`, always of all queues.
    """
    with terminal.steadily("batch") as time_left:
        back = [row.status for row in reaper.reclaim_all(conn, queue=queue)]
        removed = reaper.cleanup(conn, time_left=time_left, **kept)
    return {"reclaimed": len(back), "failed": back.count("failed"), "removed": removed}


@command(cli, *KEEP, YES, opens=False)
def cleanup(*, yes: bool, **kept: Any) -> Answer:  # noqa: ANN401 - the library's
    """Remove jobs that ended so many days ago (a number, 0 to 3650), in all queues.

    Interrupted, it ends after the batch it is at, and says how many it has removed.
    """
    done, failed = (kept[name] / timedelta(days=1) for name in ("done", "failed"))
    _ask(f"Remove jobs done {done:g} days ago or more, failed or cancelled {failed:g}?", yes=yes)
    with terminal.database() as conn, terminal.steadily("batch") as time_left:
        return {"removed": reaper.cleanup(conn, time_left=time_left, **kept)}


@command(cli, opens=False)
@click.option("--tasks", envvar="PGQ_TASKS", help="The handlers: does each fit an invocation?")
@click.option("--worker-timeout", type=Value(duration), default="2m", help="Of an invocation. [2m]")
@click.option("--sweep-every", type=Value(duration), default="1h", help="Of the sweep. [1h]")
@click.option("--suspend-after", type=Value(duration), help="Of the idle database. [never]")
@click.option("--listens", is_flag=True, help="A worker stays and listens.")
def doctor(*, tasks: str | None, **options: Any) -> Answer:  # noqa: ANN401 - Deployment's
    """Say what is wrong with database and deployment, and how to mend it; 1 = something fails."""
    if options["worker_timeout"] <= START + RESERVE:
        raise click.UsageError(f"--worker-timeout: more than {START + RESERVE} are needed to start")
    deployment = Deployment(tasks=_handlers(tasks) if tasks else None, **options)
    with terminal.connect() as conn:
        findings = examine(conn, deployment)
    if any(one.level == "fail" for one in findings):
        click.get_current_context().meta.setdefault(terminal.CODE, terminal.COULD_NOT)
    return {"findings": [asdict(one) for one in findings]}


@cli.group("jobs", no_args_is_help=False)
def job_commands() -> None:
    """Look at jobs and steer them: list, show, retry, cancel."""


@command(job_commands, *OF, name="list")
@click.option("--status", type=click.Choice(["queued", "running", "done", "failed", "cancelled"]))
@click.option("--unique-key", type=_name("unique_key", MAX_KEY))
@click.option("--worker", type=_name("worker"), help="Jobs that this worker runs.")
@click.option("--before", type=ID, help="Jobs older than this id: the next page.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
def list_jobs(conn: Connection, *, limit: int, **filters: Any) -> Answer:  # noqa: ANN401 - find's
    """Show jobs, the newest first, and how to get the next page."""
    if filters["worker"] is not None:  # it is left on a job that was cancelled meanwhile
        filters["status"] = filters["status"] or "running"
    page = list(islice(_each(conn, limit, **filters), limit))
    names = ("id", "status", "queue", "task", "attempt", "run_at")
    rows = [{name: getattr(job, name) for name in names} | {"error": _why(job)} for job in page]
    return {"jobs": rows} | ({"next": f"--before {page[-1].id}"} if len(page) == limit else {})


@command(job_commands, name="show")
@click.argument("job_id", metavar="ID", type=ID)
@click.option("--payload", "whole", is_flag=True, help="Payload and headers, too.")
def show_job(conn: Connection, *, job_id: int, whole: bool) -> Answer:
    """Show all of one job; payload and headers, which may hold secrets, only if asked to."""
    details = jobs.describe(conn, job_id)
    if details is None:
        raise PgqError(f"there is no job {job_id}; see pgq-core jobs list")
    details["last_error"] = details.pop("last_error")  # at the end: it may have many lines
    hidden = () if whole else ("payload", "headers")
    return {name: details[name] for name in (*ASKED, *details) if name not in hidden}


@command(job_commands, *OF, YES, KICK, name="retry", opens=False)
@click.argument("ids", metavar="[ID]...", nargs=-1, type=ID)
@click.option("--status", type=click.Choice(["failed", "cancelled"]), help="[default: failed]")
def retry_jobs(*, ids: tuple[int, ...], yes: bool, kick: str | None, **filters: Any) -> Answer:  # noqa: ANN401 - find's
    """Queue failed or cancelled jobs again with all their attempts: by id, or all that match.

    Of all that match those are shown that could not be tried again; 1 = there are such.
    """
    wanted = {name: value for name, value in filters.items() if value is not None}
    if bool(ids) == bool(wanted):
        raise click.UsageError("name jobs by their ids, or by --queue, --task or --status")
    with terminal.database() as conn:
        if wanted:
            found = _each(conn, 200, **{"status": "failed"} | wanted)  # each may bring 256 KiB
            ids = tuple(job.id for job in found)[::-1]  # the oldest are to be claimed first
            _ask(f"Try {len(ids)} jobs again?", yes=yes or not ids)
        rows = _steer(conn, jobs.retry, ids)
        done = [row for row in rows if not row["why"]]
        kicked = _kick(conn, kick, *sorted({row["queue"] for row in done}))
    shown = [row for row in rows if row["why"] or not wanted]
    return {"could_not" if wanted else "jobs": shown, "retried": len(done), "kick": kicked}


@command(job_commands, name="cancel")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=ID)
def cancel_jobs(conn: Connection, *, ids: tuple[int, ...]) -> Answer:
    """Stop unfinished jobs for good; 1 = some could not be.

    A handler that runs is not interrupted: it can ask, and its writes are refused.
    """
    return {"jobs": _steer(conn, jobs.cancel, ids)}


def _each(conn: Connection, size: int, before: Any = None, **filters: Any) -> Iterator[Job]:  # noqa: ANN401 - find's
    while page := jobs.find(conn, before=before, limit=size, **filters):
        yield from page
        before = page[-1].id


def _steer(conn: Connection, act: Act, ids: Iterable[int]) -> list[Answer]:
    """Do *act* to one job after the other; say what became of each."""
    rows: list[Answer] = []
    with terminal.steadily("job") as time_left:
        for job_id in dict.fromkeys(ids):
            if not time_left():
                break
            changed, job = act(conn, job_id), jobs.get(conn, job_id)
            row = {"id": job_id, "queue": job and job.queue, "status": job and job.status}
            rows.append(row | {"why": "" if changed else _why_not(act, job)})
    if any(row["why"] for row in rows):
        click.get_current_context().meta.setdefault(terminal.CODE, terminal.COULD_NOT)
    return rows


def _why(job: Job) -> str:
    """Return its error in one line; one that is done has got over it."""
    return shorten((job.status != "done" and job.last_error) or "", 60, placeholder="…")


def _why_not(act: object, job: Job | None) -> str:
    if job is None:
        return "there is no such job"
    free = act is jobs.retry and job.status in ("failed", "cancelled")
    return "its unique key is in use again" if free else f"it is {job.status}"


@cli.group("queues", no_args_is_help=False)
def queue_commands() -> None:
    """Set up queues: list, set, pause, resume."""


queue_commands.add_command(status, "list")


@command(queue_commands, QUEUE, NEW, name="set")
@click.option("--max-workers", type=click.IntRange(1, 1000), required=True)
def set_queue(conn: Connection, *, queue: str, new: bool, max_workers: int) -> Answer:
    """Let at most so many workers run QUEUE at a time, softly."""
    _known(conn, queue, new=new)
    queues.configure(conn, queue, max_workers=max_workers)
    return {"queue": queue, "max_workers": max_workers}


@command(queue_commands, QUEUE, NEW, name="pause")
def pause_queue(conn: Connection, *, queue: str, new: bool) -> Answer:
    """Claim no more jobs of QUEUE; what a worker has claimed goes on."""
    _known(conn, queue, new=new)
    queues.pause(conn, queue)
    return {"queue": queue, "paused": True}


@command(queue_commands, QUEUE, KICK, name="resume")
def resume_queue(conn: Connection, *, queue: str, kick: str | None) -> Answer:
    """Start jobs of QUEUE again."""
    _known(conn, queue, new=False)
    queues.resume(conn, queue)
    return {"queue": queue, "paused": False, "kick": _kick(conn, kick, queue)}


def _known(conn: Connection, queue: str, *, new: bool) -> None:
    """Refuse a name that was mistyped: enqueueing and working make a queue, too."""
    if not new and queue not in {one.queue for one in queues.stats(conn)}:
        message = f"there is no queue {queue!r}; see pgq-core queues list (one to come: --new)"
        raise PgqError(message)


@cli.group(no_args_is_help=False)
def cron() -> None:
    """Enqueue jobs at the times of crontab(5): add, list, pause, resume, remove."""


@command(cron, NAME, click.Argument(["cron"]), TASK, PAYLOAD, *JOB, KICK, name="add", opens=False)
@click.option("--timezone", default="UTC", show_default=True, help="Whose clock CRON means.")
def add_schedule(*, kick: str | None, **options: Any) -> Answer:  # noqa: ANN401 - those of NewSchedule
    """Make or change the schedule NAME: jobs for TASK at the times of CRON, "0 2 * * *" and so on.

    The kick wakes a worker that arms the alarm; without one the next worker or sweep does.
    """
    schedule = _as_given(schedules.NewSchedule, **options)
    _as_given(schedule.job().encoded)
    with terminal.database() as conn:
        slot = schedules.put(conn, schedule)
        kicked = _kick(conn, kick, schedule.queue)
    return {"name": schedule.name, "next_at": slot, "kick": kicked}


@command(cron, name="list")
def list_schedules(conn: Connection) -> Answer:
    """Show each schedule and its next slot, in UTC."""
    hidden = {"payload", "priority", "max_attempts"}
    found = [asdict(one) for one in schedules.find(conn)]
    return {"schedules": [{k: row[k] for k in row if k not in hidden} for row in found]}


@command(cron, NAME, name="pause")
def pause_schedule(conn: Connection, *, name: str) -> Answer:
    """Let no slot of the schedule NAME fire."""
    _there(name, schedules.pause(conn, name))
    return {"name": name, "paused": True}


@command(cron, NAME, KICK, name="resume")
def resume_schedule(conn: Connection, *, name: str, kick: str | None) -> Answer:
    """Let the schedule NAME fire again, from its next slot on."""
    queue = _there(name, _as_given(schedules.resume, conn, name))
    return {"name": name, "paused": False, "kick": _kick(conn, kick, str(queue))}


@command(cron, NAME, name="remove")
def remove_schedule(conn: Connection, *, name: str) -> Answer:
    """Remove the schedule NAME; the jobs of its past slots stay."""
    _there(name, schedules.remove(conn, name))
    return {"name": name, "removed": True}


def _there(name: str, found: object) -> object:
    if not found:
        raise PgqError(f"there is no schedule {name!r}; see pgq-core cron list")
    return found


def _handlers(spec: str) -> Tasks:
    sys.path.insert(0, str(Path.cwd()))  # a script's own folder stands there, not the user's
    return Tasks.load(spec)


def _producer(function: str | None) -> Producer:
    return Producer(LambdaKick(function) if function else NoKick())


def _kick(conn: Connection, function: str | None, *names: str) -> str:
    producer = _producer(function)
    producer.kick(conn, names)
    return _kicked(producer)


def _kicked(producer: Producer) -> str:
    """Say what became of the kicks, the worst first."""
    return next((word for word in ("failed", "sent", "coalesced") if producer.stats[word]), "none")


def _as_given(act: Callable[..., Any], *args: object, **given: object) -> Any:  # noqa: ANN401
    """Return what *act* does; what it refuses of its arguments is wrong usage."""
    try:
        return act(*args, **given)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None


def _ask(question: str, *, yes: bool) -> None:
    """Ask before much is changed; where nobody can answer, --yes must be given."""
    if not (yes or (sys.stdin and sys.stdin.isatty())):
        raise click.UsageError("without a terminal to ask on, give --yes")
    if not (yes or click.confirm(question, err=True)):
        raise PgqError("nothing was changed")


def main() -> None:
    """Run one command and end with its exit code."""
    handler = logging.StreamHandler()
    handler.setFormatter(terminal.Line("pgq-core: %(message)s"))
    logging.basicConfig(handlers=[handler])
    if isinstance(sys.stdout, TextIOWrapper):  # of a locale that cannot write all there is
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(prog_name="pgq-core", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - each ends as one line
        code = terminal.explain(error)
    sys.exit(code)
