"""Sign-ups in, mails out, through a deployed stack, while things go wrong in earnest.

All is well only if everyone who signed up has mail under exactly one Message-ID, but for the one
whose address is refused, nobody else has any, and nothing is left to do.
"""

import csv
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import class_row

from local.ministack import ministack
from local.postgres import postgres
from local.smtp import Mailbox, smtp
from pgq_core import LambdaKick, Producer

from . import check
from .app import SCHEMA, Application, User, read_users
from .faults import Faults, LossyKick, plan
from .show import FRAME, Show
from .stage import SETTINGS, Stack, deploy

USERS = Path(__file__).with_name("users.csv")
THREADS = 4
RUSH, LAST = 12.0, 52.0  # s: nine users in ten come before the first, the last one at the second
PATIENCE = 100.0  # s without a job finished
SHOWN = 10  # lines of what is wrong

ROWS = """
SELECT users.email, jobs.id AS job_id, jobs.status,
       coalesce(jobs.attempts - jobs.released, 0) AS tries, coalesce(jobs.last_error, '') AS error
FROM users
FULL JOIN pgq_core.jobs ON (jobs.payload->>'user_id')::bigint = users.id
"""
# Nothing is left, nobody works, nobody has been woken, and nobody waits in place for an instant to
# come, which a worker with a timeout of 15 s does for less than 10 s.
AT_REST = """
SELECT NOT EXISTS (SELECT FROM pgq_core.jobs WHERE status IN ('queued', 'running'))
   AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'pgq/%')
   AND NOT EXISTS (SELECT FROM pgq_core.queues
                   WHERE kick_requested_at > now() - interval '5 seconds'
                      OR alarm_at BETWEEN now() AND now() + interval '10 seconds')
"""

Wait = Callable[[float], None]


def play() -> int:
    """Run the demo; return the exit code: 0 well, 1 not so, 2 no users."""
    path = Path(os.environ.get("USERS") or USERS)
    try:
        users, skipped = read_users(path)
    except (OSError, ValueError, csv.Error) as error:
        warn([f"{path} cannot be read: {error}"])
        return 2
    warn([f"{path}: {sentence}" for sentence in skipped])
    if not users:
        warn([f"{path}: nobody in it can sign up"])
        return 2
    try:
        return run(users)
    except RuntimeError as error:  # a server, sam or a function could not do its part
        warn([str(error)])
        return 1


def run(users: Sequence[User]) -> int:
    """Deploy the stack on this machine, let *users* sign up, and see what has come of it."""
    show = Show()
    faults = plan(users, show.say)
    mailbox = Mailbox(busy=faults.busy, unknown=faults.unknown, accepted=faults.accepted)
    with postgres() as server, ministack(SETTINGS) as cloud, smtp(mailbox):
        show.say("Postgres, the emulator of AWS and a mail server are up")
        stack = deploy(cloud, mail_port=mailbox.port, DatabaseUrl=server.dsn())
        announce(users, faults, show)
        faults.mail_port = mailbox.port
        producer = Producer(LossyKick(inner=warm_kick(stack), faults=faults))
        application = Application(dsn=server.dsn(), producer=producer, charge=faults.charge)
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute(SCHEMA)
            with show.progress(len(users) - len(faults.declined), lambda: look(conn)) as watch:
                signed_up = let_in(users, application, watch.wait)
                wait_for_rest(conn, watch.wait)
            seen = check.Evidence(
                faults=faults,
                signed_up=signed_up,
                kicks=producer.stats,
                rows=read_rows(conn),
                mails=mailbox.messages,
                worker_log=stack.log("WorkerName"),
                reaper_log=stack.log("ReaperName"),
            )
    return report(seen, show)


def announce(users: Sequence[User], faults: Faults, show: Show) -> None:
    """Say what is to come, so that nobody takes it for a fault or wonders at a wait."""
    show.say("the stack is built and deployed, its database migrated")
    last = arrival(len(users) - 1, len(users))
    show.say(
        f"{len(users)} users come, the last one after {last:.0f} s; on purpose "
        f"{on_purpose(faults)}, and the first kick is lost"
    )
    show.say("what a lost kick leaves behind waits for the next one, or for the sweep each minute")


def on_purpose(faults: Faults) -> str:
    """Say what keeps some users from having mail."""
    refused = ", ".join(sorted(faults.unknown)) or "nobody"
    return f"{len(faults.declined)} are rolled back, {refused} is refused for good"


def warm_kick(stack: Stack) -> LambdaKick:
    """Make the application's kick, and its AWS client before the first user has to wait for it."""
    os.environ.update(stack.cloud.environment())  # where every AWS client looks
    kick = LambdaKick(stack.outputs["WorkerName"])
    kick.warm()
    return kick


def let_in(users: Sequence[User], application: Application, wait: Wait) -> dict[str, bool]:
    """Let each user sign up when it is time; return by address whether it was committed."""
    start = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        futures = {}
        for place, user in enumerate(users):
            wait(start + arrival(place, len(users)))
            futures[user.email] = pool.submit(application.sign_up, user)
        while not all(future.done() for future in futures.values()):
            wait(time.monotonic() + FRAME)
        return {email: future.result() for email, future in futures.items()}


def arrival(place: int, count: int) -> float:
    """Return when a user comes, in seconds: nine in ten in a rush, the others one by one."""
    early = max(1, count * 9 // 10)
    if place < early:
        return RUSH * place / early
    return RUSH + (LAST - RUSH) * (place - early + 1) / (count - early)


def wait_for_rest(conn: psycopg.Connection[Any], wait: Wait) -> None:
    """Return when everything has been done and logged, or when nothing gets on any more."""
    at_rest, finished, moved = False, -1, time.monotonic()
    while not at_rest and time.monotonic() < moved + PATIENCE:
        [(at_rest,)] = conn.execute(AT_REST)
        before, (finished, _) = finished, look(conn)
        moved = moved if finished == before else time.monotonic()
        wait(time.monotonic() + 1)  # an invocation's log comes a moment after its end


def read_rows(conn: psycopg.Connection[Any]) -> list[check.Row]:
    """Read every user and every job."""
    with conn.cursor(row_factory=class_row(check.Row)) as cursor:
        return cursor.execute(ROWS).fetchall()


def look(conn: psycopg.Connection[Any]) -> tuple[int, str]:
    """Count the jobs that are finished, and tell what the others do."""
    count = Counter(
        dict(conn.execute("SELECT status, count(*) FROM pgq_core.jobs GROUP BY status"))
    )
    line = f"queued {count['queued']}, running {count['running']}, failed {count['failed']}"
    return count["done"] + count["failed"], line


def report(seen: check.Evidence, show: Show) -> int:
    """Print the figures and what is wrong; return the exit code."""
    show.table(check.figures(seen))
    problems = check.problems(seen)
    if problems:
        warn(problems)
        warn([f"a function said: {text}" for text in check.errors(seen.worker_log)])
        return 1
    mailed = len(seen.delivered())
    show.say(
        f"all is well: {mailed} of {len(seen.signed_up)} have mail, each under exactly one "
        f"Message-ID; on purpose the others have none: {on_purpose(seen.faults)}"
    )
    return 0


def warn(sentences: Sequence[str]) -> None:
    """Print the first of what went wrong."""
    for sentence in sentences[:SHOWN]:
        print(f"demo: {sentence}", file=sys.stderr)
    if len(sentences) > SHOWN:
        print(f"demo: and {len(sentences) - SHOWN} more of the kind", file=sys.stderr)
