"""The stack, deployed once on the emulator, and an application that kicks its worker."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from examples.signups.app import SCHEMA, Application, User
from examples.signups.stage import SETTINGS, Stack, deploy
from local.ministack import Cloud, ministack
from local.postgres import Server
from local.smtp import Mailbox, smtp
from pgq_core import LambdaKick, NoKick, Producer, jobs
from pgq_core.job import Job
from tests.functions.fakes import rds_secret

BUSY, UNKNOWN = "busy@mail.example", "unknown@mail.example"
#: Kicks on their way: a commit now would send none.
PENDING = """
SELECT count(*) FROM pgq_core.queues WHERE kick_requested_at > now() - interval '5 seconds'
"""
NEVER = "cron(0 0 1 1 ? *)"  # the sweeps are sent by the tests, not by the clock


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "acceptance: through the deployed stack on the emulator")


@pytest.fixture(scope="session")
def mailbox() -> Iterator[Mailbox]:
    with smtp(Mailbox(busy=[BUSY], unknown=[UNKNOWN])) as opened:
        yield opened


@pytest.fixture(scope="session")
def deployed_dsn(server: Server) -> str:
    """The stack's own database, still empty."""
    server.create("deployed")
    return server.dsn("deployed")


@pytest.fixture(scope="session")
def stack(deployed_dsn: str, mailbox: Mailbox) -> Iterator[Stack]:
    """As in production: the database's address is a secret, the roles are enforced."""
    with psycopg.connect(deployed_dsn) as conn:
        conn.execute("CREATE ROLE before_rotation LOGIN SUPERUSER")
    with ministack({**SETTINGS, "AUTH": "true"}) as cloud:
        secret = cloud.client("secretsmanager").create_secret(
            Name="database", SecretString=rds_secret(deployed_dsn, username="before_rotation")
        )
        stack = deploy(
            cloud,
            mail_port=mailbox.port,
            DatabaseSecretArn=secret["ARN"],
            WorkerPolicyArn=excuse(cloud),
            SweepSchedule=NEVER,
        )
        with psycopg.connect(deployed_dsn) as conn:
            conn.execute(SCHEMA)
        yield stack


def excuse(cloud: Cloud) -> str:
    """A policy that makes up for a mistake of the emulator.

    It takes every schedule for one of the group "default", so that the worker's own permission to
    create them in the stack's group would not count.
    """
    statement = {
        "Effect": "Allow",
        "Action": "scheduler:CreateSchedule",
        "Resource": "arn:aws:scheduler:*:*:schedule/default/*",
    }
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    policy = cloud.client("iam").create_policy(PolicyName="excuse", PolicyDocument=document)
    return str(policy["Policy"]["Arn"])


@pytest.fixture
def db(stack: Stack, deployed_dsn: str) -> Iterator[psycopg.Connection[Any]]:  # noqa: ARG001 - migrated by it
    """An autocommit connection to the stack's database."""
    with psycopg.connect(deployed_dsn, autocommit=True) as opened:
        yield opened


@dataclass(frozen=True, kw_only=True)
class Shop:
    """An application process: it signs users up, and finds what has become of their mail."""

    application: Application
    mailbox: Mailbox
    db: psycopg.Connection[Any]

    @property
    def producer(self) -> Producer:
        return self.application.producer

    def sign_up(self, email: str) -> Job:
        self.application.sign_up(User(name="Ann", email=email))
        [(job_id,)] = self.db.execute(
            "SELECT id FROM pgq_core.jobs WHERE payload->>'email' = %s", [email]
        )
        return self.job(job_id)

    def job(self, job_id: int) -> Job:
        job = jobs.get(self.db, job_id)
        assert job is not None
        return job

    def finished(self, job: Job, *, seconds: float = 40) -> Job:
        """Wait until the job is done or failed."""
        wait_for(lambda: self.job(job.id).status in ("done", "failed"), seconds=seconds)
        return self.job(job.id)

    def mails(self, email: str) -> list[str]:
        return [mail.message_id for mail in self.mailbox.messages if mail.recipient == email]


@pytest.fixture
def shop(
    stack: Stack,
    mailbox: Mailbox,
    db: psycopg.Connection[Any],
    deployed_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Shop:
    """An application whose commits kick the deployed worker; no earlier kick is on its way."""
    wait_for(lambda: db.execute(PENDING).fetchone() == (0,))
    for name, text in stack.cloud.environment().items():
        monkeypatch.setenv(name, text)
    producer = Producer(LambdaKick(stack.outputs["WorkerName"]))
    application = Application(dsn=deployed_dsn, producer=producer, charge=lambda _: None)
    return Shop(application=application, mailbox=mailbox, db=db)


@pytest.fixture
def silent_shop(shop: Shop, deployed_dsn: str) -> Shop:
    """An application whose commits kick nobody."""
    silent = Application(dsn=deployed_dsn, producer=Producer(NoKick()), charge=lambda _: None)
    return Shop(application=silent, mailbox=shop.mailbox, db=shop.db)


def rest(db: psycopg.Connection[Any]) -> None:
    """Wait until no worker is at work."""
    query = "SELECT FROM pg_stat_activity WHERE application_name = 'pgq/worker'"
    wait_for(lambda: not db.execute(query).fetchall())


def wait_for(true: Callable[[], bool], *, seconds: float = 40) -> None:
    """Look again until it is true: what is awaited happens in other processes."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not so within {seconds:g} s"
        time.sleep(0.05)
