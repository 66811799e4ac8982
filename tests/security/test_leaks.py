"""Nothing of a payload, its headers, a password or a secret is logged, raised, stored or counted.

But for what a handler itself raises: that is stored and logged as it is (docs/operations.md).
"""

import traceback
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgq_core import (
    Context,
    Discard,
    Job,
    LambdaKick,
    NewJob,
    Producer,
    Retry,
    Snooze,
    Tasks,
    enqueue,
    enqueue_many,
    jobs,
    reaper,
    schedules,
    work,
)
from tests.endpoint import Cloud
from tests.security.conftest import HEADERS, MARK, PAYLOAD, RULES, Heard, stored

LONG = timedelta(days=2)
EXPIRED = """
    UPDATE pgq_core.jobs SET status = 'running', attempts = 1, locked_by = 'a worker that vanished',
        locked_until = now() - interval '1 second'"""
UNREADABLE = """
    UPDATE pgq_core.jobs
    SET payload = jsonb_build_object('card', 'm4rk-payload', 'n', repeat('9', 5000)::numeric)"""


def cut(conn: psycopg.Connection) -> None:
    """End every other session of the database."""
    conn.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def handlers(conn: psycopg.Connection) -> Tasks:
    """A handler for each way in which a job ends, named by it."""

    def fail(_job: Job) -> None:
        raise RuntimeError("no luck")

    def retry(_job: Job) -> Retry:
        return Retry("later", after=LONG)

    def in_transaction(_job: Job, ctx: Context) -> None:
        with ctx.transaction() as own:
            own.execute("SELECT 1")

    endings: dict[str, Any] = {
        "done": lambda _job: None,
        "failed": fail,
        "retried": retry,
        "snoozed": lambda _job: Snooze(LONG),
        "discarded": lambda _job: Discard("of no use"),
        "cancelled": lambda job: jobs.cancel(conn, job.id),
        "cut off": lambda _job: cut(conn),
        "refused claim": lambda _job: None,
        "refused end": lambda _job: None,
        "refused end of a transaction": in_transaction,
        "refused lease": lambda _job: None,
        "unreadable": lambda _job: None,
    }
    tasks = Tasks()
    for name, handler in endings.items():
        tasks.handler(name, timeout=LONG if name == "refused lease" else timedelta(minutes=1))(
            handler
        )
    return tasks


#: What is to be heard of each, lest the test listen to nothing.
SAID = {
    "done": "drain ended",
    "failed": "handler raised",
    "retried": "drain ended",
    "snoozed": "drain ended",
    "discarded": "job discarded",
    "cancelled": "lease lost",
    "cut off": "connection lost",
    "refused claim": "batch refused",
    "refused end": "settlement refused",
    "refused end of a transaction": "handler raised",
    "unreadable": "drain ended",
    "nobody knows it": "unknown task",
}


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("task", SAID)
def test_however_a_job_ends_nothing_of_it_is_told(
    task: str, conn: psycopg.Connection, secret_dsn: str, heard: Heard
) -> None:
    enqueue(conn, task, PAYLOAD, headers=HEADERS)
    if task == "unreadable":
        conn.execute(UNREADABLE)
    report = work(lambda: psycopg.connect(secret_dsn), handlers(conn))
    assert SAID[task] in heard.text
    assert heard.marks + MARK.findall(stored(conn) + str(asdict(report))) == []


@pytest.mark.usefixtures("rules")
def test_an_error_that_ends_the_drain_tells_nothing(
    conn: psycopg.Connection, secret_dsn: str, heard: Heard
) -> None:
    """A lease that a rule of the application's own forbids to prolong is the statement's fault."""
    enqueue(conn, "refused lease", PAYLOAD, headers=HEADERS)
    with pytest.raises(psycopg.errors.CheckViolation) as raised:
        work(lambda: psycopg.connect(secret_dsn), handlers(conn))
    assert "leases" in str(raised.value)
    assert "m4rk-payload" in str(raised.value.diag.message_detail)  # for those who ask
    assert heard.marks + MARK.findall("".join(traceback.format_exception(raised.value))) == []


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("task", ["crashed", "refused reclaim"])
def test_the_crash_of_a_worker_tells_nothing_of_its_jobs(
    task: str, conn: psycopg.Connection, heard: Heard
) -> None:
    enqueue(conn, task, PAYLOAD, headers=HEADERS)
    conn.execute(EXPIRED)
    back = reaper.reclaim_all(conn)
    assert len(back) == (task == "crashed")
    assert ("batch refused" in heard.text) == (task == "refused reclaim")
    assert heard.marks + MARK.findall(stored(conn) + str(back)) == []


def test_a_cleanup_that_is_refused_tells_nothing(conn: psycopg.Connection, heard: Heard) -> None:
    conn.execute("ALTER TABLE pgq_core.jobs_archive ADD CONSTRAINT none CHECK (task = '')")
    enqueue(conn, "done", PAYLOAD, headers=HEADERS)
    conn.execute("UPDATE pgq_core.jobs SET status = 'done', finished_at = '2020-01-01Z'")
    assert reaper.cleanup(conn, archive=True) == 0
    assert "batch refused" in heard.text
    assert heard.marks == []


@pytest.mark.usefixtures("rules")
def test_a_producer_tells_nothing_of_what_it_enqueues(
    conn: psycopg.Connection, heard: Heard, cloud: Cloud
) -> None:
    cloud(1)
    producer = Producer(LambdaKick("worker"))
    conn.execute("ALTER TABLE pgq_core.queues ADD CONSTRAINT quiet CHECK (name <> 'unmarked')")
    options: dict[str, Any] = {"headers": HEADERS, "queue": "unmarked"}
    new = [NewJob("done", PAYLOAD, **options)]
    with producer.transaction(conn) as tx:
        told: list[object] = [tx.enqueue("done", PAYLOAD, **options), *tx.enqueue_many(new)]
    assert "kick not sent" in heard.text
    assert "kick mark not used" in heard.text
    refused = [NewJob("refused", PAYLOAD, headers=HEADERS)]
    for act in (
        lambda: enqueue(conn, "refused", PAYLOAD, headers=HEADERS),
        lambda: enqueue_many(conn, refused),
    ):
        with pytest.raises(psycopg.errors.CheckViolation, match="enqueues") as raised:
            act()
        told.append(raised.value)
    assert heard.marks + MARK.findall(f"{told} {new} {tx} {producer.stats}") == []


def test_a_schedule_that_cannot_fire_tells_nothing(conn: psycopg.Connection, heard: Heard) -> None:
    new = schedules.NewSchedule(name="n", cron="* * * * *", task="refused", payload=PAYLOAD)
    schedules.put(conn, new)
    conn.execute(RULES)
    conn.execute("UPDATE pgq_core.schedules SET next_at = now()")
    assert schedules.fire(conn, "default") == 0
    assert "schedule paused" in heard.text
    assert heard.marks == []


def test_values_that_end_up_in_logs_do_not_show_what_they_carry(conn: psycopg.Connection) -> None:
    enqueue(conn, "done", PAYLOAD, headers=HEADERS)
    new = schedules.NewSchedule(name="n", cron="* * * * *", task="t", payload=PAYLOAD)
    schedules.put(conn, new)
    shown: list[Any] = [new, jobs.find(conn), schedules.find(conn)]
    assert len(shown[1]) == len(shown[2]) == 1
    assert MARK.findall(repr(shown)) == []
