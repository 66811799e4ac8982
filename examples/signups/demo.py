"""`make demo`: sign-ups in, mails out, through a deployed stack, while things go wrong in earnest.

Exits with 0 only if everyone who signed up has mail under exactly one Message-ID, nobody else has
any, and nothing is left to do. USERS=path names another CSV file than the one beside this.
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
from .faults import LossyKick, plan
from .show import Show
from .stage import SETTINGS, Stack, deploy

USERS = Path(__file__).with_name("users.csv")
THREADS = 4
RUSH, LAST = 12.0, 52.0  # s: nine users in ten come before the first, the last one at the second
PATIENCE = 100.0  # s from then on
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


def main() -> int:
    """Run the demo; return the exit code: 0 well, 1 not so, 2 no users, 130 interrupted."""
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
    except KeyboardInterrupt:
        warn(["interrupted: every process is ended, every folder removed"])
        return 130


def run(users: Sequence[User]) -> int:
    """Deploy the stack on this machine, let *users* sign up, and see what has come of it."""
    show = Show()
    faults = plan(users, show.say)
    mailbox = Mailbox(busy=faults.busy, unknown=faults.unknown, accepted=faults.accepted)
    with postgres() as server, ministack(SETTINGS) as cloud, smtp(mailbox):
        show.say("Postgres, the emulator of AWS and a mail server are up")
        stack = deploy(cloud, mail_port=mailbox.port, DatabaseUrl=server.dsn())
        show.say("the stack is built and deployed, its database migrated")
        os.environ.update(cloud.environment())  # where the application's own AWS client finds it
        faults.mail_port = mailbox.port
        producer = Producer(LossyKick(inner=warm_kick(stack), faults=faults))
        application = Application(dsn=server.dsn(), producer=producer, charge=faults.charge)
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute(SCHEMA)
            with show.progress(len(users) - len(faults.declined), lambda: look(conn)) as wait:
                signed_up = let_in(users, application, wait)
                wait_for_rest(conn, wait)
            evidence = check.Evidence(
                faults=faults,
                signed_up=signed_up,
                kicks=producer.stats,
                rows=conn.cursor(row_factory=class_row(check.Row)).execute(ROWS).fetchall(),
                mails=mailbox.messages,
                worker_log=stack.log("WorkerName"),
                reaper_log=stack.log("ReaperName"),
            )
    return report(evidence, show)


def warm_kick(stack: Stack) -> LambdaKick:
    """Make the application's kick, and its AWS client before the first user has to wait for it."""
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
        return {email: future.result() for email, future in futures.items()}


def arrival(place: int, count: int) -> float:
    """Return when a user comes, in seconds: nine in ten in a rush, the others one by one."""
    early = max(1, count * 9 // 10)
    if place < early:
        return RUSH * place / early
    return RUSH + (LAST - RUSH) * (place - early + 1) / (count - early)


def wait_for_rest(conn: psycopg.Connection[Any], wait: Wait) -> None:
    """Return when everything has been done and logged, or when that takes too long."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        [(at_rest,)] = conn.execute(AT_REST)
        wait(time.monotonic() + 1)  # an invocation's log comes a moment after its end
        if at_rest:
            return


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
    show.say(
        "everyone who signed up has mail under exactly one Message-ID, and nobody else has any"
    )
    return 0


def warn(sentences: Sequence[str]) -> None:
    """Print the first of what went wrong."""
    for sentence in sentences[:SHOWN]:
        print(f"demo: {sentence}", file=sys.stderr)
    if len(sentences) > SHOWN:
        print(f"demo: and {len(sentences) - SHOWN} more of the kind", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
