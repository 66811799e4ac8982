"""The template deployed by the real `sam` to the local cloud, and used as an application would."""

import json
import time
from datetime import UTC
from pathlib import Path
from typing import Any

import psycopg
import pytest

from local.ministack import Cloud, ministack
from local.sam import build_and_deploy
from pgq_core import LambdaKick, Producer, schedules
from pgq_core.migrate import migrations
from tests.functions.fakes import rds_secret

HANDLERS = """
import os
from datetime import timedelta
from pgq_core import Retry, Tasks

tasks = Tasks()

@tasks.cron("0 0 1 1 *")
@tasks.handler("greet", timeout=timedelta(seconds=5), backoff=lambda attempt: timedelta(seconds=1))
def greet(job, ctx):
    if job.attempt < job.payload["tries"]:
        raise RuntimeError("not yet")
    assert os.environ["APP_SETTINGS"] == "hello"
"""


def invoke(cloud: Cloud, name: str, event: object) -> Any:
    answer = cloud.client("lambda").invoke(FunctionName=name, Payload=json.dumps(event).encode())
    assert "FunctionError" not in answer, answer["Payload"].read()
    return json.loads(answer["Payload"].read())


def wait_done(conn: psycopg.Connection, jobs: int) -> None:
    until = time.monotonic() + 30
    count = "select count(*) from pgq_core.jobs where status = 'done'"
    while conn.execute(count).fetchone() != (jobs,):
        assert time.monotonic() < until, conn.execute("select * from pgq_core.jobs").fetchall()
        time.sleep(0.05)


def wait_for_alarm(cloud: Cloud, at: str) -> None:
    """Wait until the worker that the migrate function kicked has armed its alarm."""
    until, scheduler = time.monotonic() + 30, cloud.client("scheduler")
    while True:
        found = [
            scheduler.get_schedule(Name=one["Name"], GroupName=one["GroupName"])
            for one in scheduler.list_schedules()["Schedules"]
        ]
        if at in [one["ScheduleExpression"] for one in found]:
            return
        assert time.monotonic() < until, found
        time.sleep(0.1)


def left_behind(cloud: Cloud) -> list[object]:
    return [
        *cloud.client("lambda").list_functions()["Functions"],
        *cloud.client("logs").describe_log_groups()["logGroups"],
        *cloud.client("iam").list_roles()["Roles"],
        *[
            group["Name"]
            for group in cloud.client("scheduler").list_schedule_groups()["ScheduleGroups"]
            if group["Name"] != "default"
        ],
    ]


@pytest.mark.timeout(180)
def test_a_stack_deploys_works_survives_a_rotation_and_leaves_nothing(
    empty_dsn: str, tmp_path: Path
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "jobs.py").write_text(HANDLERS)
    with ministack() as cloud, psycopg.connect(empty_dsn, autocommit=True) as conn:
        secrets = cloud.client("secretsmanager")
        conn.execute("create role before_rotation login superuser")
        secret = secrets.create_secret(
            Name="database", SecretString=rds_secret(empty_dsn, username="before_rotation")
        )
        parameters = {
            "TasksModule": "app.jobs:tasks",
            "DatabaseSecretArn": secret["ARN"],
            "AppSettings": "hello",
            "WaitInPlace": "5",
        }
        outputs = build_and_deploy(cloud, stack="queue", tasks_folder=app, parameters=parameters)

        # LAM-15: the retries hold for the qualifier that the outputs and the kick name.
        config = cloud.client("lambda").get_function_event_invoke_config(
            FunctionName=outputs["WorkerName"], Qualifier="$LATEST"
        )
        assert (config["MaximumRetryAttempts"], config["MaximumEventAgeInSeconds"]) == (2, 3600)

        assert invoke(cloud, outputs["MigrateName"], {}) == [one.name for one in migrations()]
        [schedule] = schedules.find(conn)
        wait_for_alarm(cloud, f"at({schedule.next_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S})")
        assert invoke(cloud, outputs["WorkerName"], {"key1": "value1"}) == {}

        kick = LambdaKick(outputs["WorkerName"], client=cloud.client("lambda"))
        producer = Producer(kick)
        with producer.transaction(conn) as tx:
            tx.enqueue("greet", {"tries": 2})  # the retry is waited for in place
        wait_done(conn, 1)

        conn.execute("alter role before_rotation rename to after_rotation")
        rotated = rds_secret(empty_dsn, username="after_rotation")
        secrets.put_secret_value(SecretId="database", SecretString=rotated)
        with producer.transaction(conn) as tx:
            tx.enqueue("greet", {"tries": 1})
        wait_done(conn, 2)
        assert invoke(cloud, outputs["ReaperName"], {}) == {"reclaimed": 0, "removed": 0}

        cloud.client("cloudformation").delete_stack(StackName="queue")
        until = time.monotonic() + 20
        while left_behind(cloud) and time.monotonic() < until:
            time.sleep(0.1)
        assert left_behind(cloud) == []
        conn.execute("reassign owned by after_rotation to current_user")
        conn.execute("drop role after_rotation")  # roles belong to the server, not to the database
