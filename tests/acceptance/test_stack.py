"""From a commit to a mail, and every other way in which the deployed functions are started."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import psycopg
import pytest

from examples.signups.app import Declined, User, sign_up
from examples.signups.stage import Stack
from examples.signups.tasks import message_id
from local.ministack import REGION
from pgq_core import LambdaKick, SchedulerAlarm, enqueue
from tests.acceptance.conftest import BUSY, UNKNOWN, Shop, rest, wait_for
from tests.functions.fakes import rds_secret

# One process deploys the stack for all of them (with xdist: --dist loadgroup).
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("acceptance"),
]


def scheduled_input(stack: Stack, output: str) -> Any:
    """What the stack's own schedule sends to a function."""
    scheduler = stack.cloud.client("scheduler")
    for entry in scheduler.list_schedules(GroupName="signups-alarms")["Schedules"]:
        schedule = scheduler.get_schedule(GroupName=entry["GroupName"], Name=entry["Name"])
        if schedule["Target"]["Arn"].endswith(f":{stack.outputs[output]}"):
            assert schedule["State"] == "ENABLED"
            return json.loads(schedule["Target"].get("Input", "{}"))
    pytest.fail(f"no schedule invokes {output}")


def expire(db: psycopg.Connection[Any], job_id: int) -> None:
    """Make the job one whose worker has vanished, a lease ago, in a queue of its own."""
    db.execute(
        """
        UPDATE pgq_core.jobs
        SET queue = 'forgotten', status = 'running', attempts = 1,
            locked_by = 'a worker that vanished', locked_until = now() - interval '1 second'
        WHERE id = %s
        """,
        [job_id],
    )


def ended(stack: Stack) -> list[str]:
    return [line for line in stack.log("WorkerName") if line.startswith("REPORT ")]


def test_one_process_runs_the_group(request: pytest.FixtureRequest) -> None:
    """Or each deploys a stack: xdist goes by the end of a test's id."""
    grouping = request.config.getoption("loadgroup", default=False)  # which its processes have only
    assert not grouping or request.node.nodeid.endswith("@acceptance")


def test_a_committed_sign_up_is_kicked_and_gets_one_mail(shop: Shop) -> None:
    job = shop.finished(shop.sign_up("ann@mail.example"))
    assert (job.status, job.attempt) == ("done", 1)
    assert shop.mails("ann@mail.example") == [message_id(job.id)]
    assert shop.producer.stats == {"sent": 1, "coalesced": 0, "failed": 0}


def test_a_sign_up_that_is_rolled_back_leaves_no_job_and_kicks_nobody(shop: Shop) -> None:
    def decline(_user: User) -> None:
        raise Declined

    bob = User(name="Bob", email="bob@mail.example")
    with psycopg.connect(shop.application.dsn) as conn:
        assert not sign_up(conn, shop.producer, bob, decline)
    found = shop.db.execute("SELECT FROM pgq_core.jobs WHERE payload->>'email' = %s", [bob.email])
    assert found.fetchall() == []
    assert shop.producer.stats["sent"] == 0


def test_a_refused_mail_fails_its_job_alone_and_says_why(shop: Shop) -> None:
    refused, welcome = shop.sign_up(UNKNOWN), shop.sign_up("carl@mail.example")
    assert shop.finished(welcome).status == "done"
    job = shop.finished(refused)
    assert (job.status, job.attempt) == ("failed", 1)
    assert job.last_error == "the mail server said: 550 5.1.1 no such user"


def test_a_busy_server_is_tried_again_in_place(shop: Shop) -> None:
    job = shop.finished(shop.sign_up(BUSY))
    assert (job.status, job.attempt) == ("done", 2)
    assert shop.mails(BUSY) == [message_id(job.id)]


def alarms(stack: Stack, queue: str) -> list[Any]:
    """The targets of the one-time schedules for a queue."""
    scheduler = stack.cloud.client("scheduler")
    found = scheduler.list_schedules(GroupName="signups-alarms")["Schedules"]
    targets = [
        scheduler.get_schedule(GroupName=one["GroupName"], Name=one["Name"])["Target"]
        for one in found
    ]
    return [one for one in targets if f'"queue": "{queue}"' in one.get("Input", "")]


def test_a_delayed_job_is_armed_as_an_alarm(shop: Shop, stack: Stack) -> None:
    with shop.producer.transaction(shop.db) as tx:
        late = tx.enqueue("send_welcome", {}, queue="late", delay=timedelta(minutes=10))
    wait_for(lambda: bool(alarms(stack, "late")))
    [target] = alarms(stack, "late")
    assert target["Arn"] == stack.outputs["WorkerArn"]
    assert shop.job(late.id).status == "queued"


def test_a_backlog_has_a_worker_kick_the_next_one(silent_shop: Shop, stack: Stack) -> None:
    before = len(ended(stack))
    jobs = [silent_shop.sign_up(f"fan{number}@mail.example") for number in range(30)]
    stack.invoke("WorkerName", {"queue": "default"})
    assert {silent_shop.finished(job).status for job in jobs} == {"done"}
    wait_for(lambda: len(ended(stack)) >= before + 2)
    assert [line for line in stack.log("WorkerName") if "kick not sent" in line] == []


def test_the_producers_policy_allows_kicks_and_nothing_else(stack: Stack) -> None:
    iam = stack.cloud.client("iam")
    iam.create_user(UserName="application")
    key = iam.create_access_key(UserName="application")["AccessKey"]
    session = boto3.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name=REGION)
    client = session.client("lambda", endpoint_url=stack.cloud.endpoint)

    def kick(output: str) -> bool:
        return LambdaKick(stack.outputs[output], client=client).kick("nobody-waits-here")

    assert not kick("WorkerName")
    iam.attach_user_policy(UserName="application", PolicyArn=stack.outputs["ProducerPolicyArn"])
    assert kick("WorkerName")
    assert not kick("ReaperName")


def test_hook_08_the_sweep_starts_what_no_kick_did(
    shop: Shop, stack: Stack, db: psycopg.Connection[Any]
) -> None:
    payload = {"name": "Dora", "email": "dora@mail.example"}
    lost = enqueue(db, "send_welcome", payload, queue="kicked in vain")
    stack.invoke("WorkerName", scheduled_input(stack, "WorkerName"))
    assert shop.job(lost.id).status == "done"
    assert shop.mails("dora@mail.example") == [message_id(lost.id)]


def test_the_reaper_puts_an_expired_lease_back(silent_shop: Shop, stack: Stack) -> None:
    job = silent_shop.sign_up("emil@mail.example")
    expire(silent_shop.db, job.id)
    swept = stack.invoke("ReaperName", scheduled_input(stack, "ReaperName"))
    assert swept["reclaimed"] == 1
    back = silent_shop.job(job.id)
    assert (back.status, back.crashed) == ("queued", 1)
    assert "a worker that vanished" in (back.last_error or "")


def test_the_reaper_removes_what_was_kept_long_enough(silent_shop: Shop, stack: Stack) -> None:
    [(old,)] = silent_shop.db.execute(
        """
        INSERT INTO pgq_core.jobs (task, status, finished_at)
        VALUES ('send_welcome', 'done', now() - interval '8 days')
        RETURNING id
        """
    )
    swept = stack.invoke("ReaperName", scheduled_input(stack, "ReaperName"))
    assert swept["removed"] == 1
    gone = silent_shop.db.execute("SELECT FROM pgq_core.jobs WHERE id = %s", [old])
    assert gone.fetchall() == []


def test_lam_14_a_running_stack_survives_a_rotation(
    shop: Shop, stack: Stack, deployed_dsn: str
) -> None:
    assert shop.finished(shop.sign_up("fay@mail.example")).status == "done"
    rest(shop.db)  # the next mail needs a connection by the former secret
    shop.db.execute("ALTER ROLE before_rotation RENAME TO after_rotation")
    stack.cloud.client("secretsmanager").put_secret_value(
        SecretId="database", SecretString=rds_secret(deployed_dsn, username="after_rotation")
    )
    assert shop.finished(shop.sign_up("gus@mail.example")).status == "done"


def test_migrating_again_does_nothing(stack: Stack) -> None:
    assert stack.invoke("MigrateName") == []


def test_an_event_that_is_none_of_ours_is_ignored(stack: Stack) -> None:
    assert stack.invoke("WorkerName", {"Records": [{"body": "{}"}]}) == {}


def test_lam_15_the_kicked_qualifier_is_the_one_with_our_retry_settings(stack: Stack) -> None:
    client = stack.cloud.client("lambda")
    asked: list[str] = []
    client.meta.events.register(
        "before-send.lambda.Invoke", lambda request, **_: asked.append(request.url)
    )
    assert LambdaKick(stack.outputs["WorkerName"], client=client).kick("nobody-waits-here")
    # A call that names no qualifier is one of $LATEST (Lambda developer guide, Invoke).
    qualifier = parse_qs(urlsplit(asked[0]).query).get("Qualifier", ["$LATEST"])[0]
    config = client.get_function_event_invoke_config(
        FunctionName=stack.outputs["WorkerName"], Qualifier=qualifier
    )
    assert config["MaximumRetryAttempts"] == 2
    assert config["MaximumEventAgeInSeconds"] == 3600


def things(cloud: Any, stack: str) -> set[str]:
    """The names of everything that a stack of ours makes, or its worker."""
    lambdas, scheduler, iam = (cloud.client(one) for one in ("lambda", "scheduler", "iam"))
    found = {
        *(one["FunctionName"] for one in lambdas.list_functions()["Functions"]),
        *(one["logGroupName"] for one in cloud.client("logs").describe_log_groups()["logGroups"]),
        *(one["Name"] for one in scheduler.list_schedule_groups()["ScheduleGroups"]),
        *(f"{one['GroupName']}/{one['Name']}" for one in scheduler.list_schedules()["Schedules"]),
        *(one["RoleName"] for one in iam.list_roles()["Roles"]),
        *(one["PolicyName"] for one in iam.list_policies(Scope="Local")["Policies"]),
    }
    return {name for name in found if stack in name}


def test_a_second_stack_is_made_changed_and_removed_without_a_trace(stack: Stack) -> None:
    cloud, cloudformation = stack.cloud, stack.cloud.client("cloudformation")
    template = cloudformation.get_template(StackName="signups", TemplateStage="Original")
    [first] = cloudformation.describe_stacks(StackName="signups")["Stacks"]
    values = {one["ParameterKey"]: one["ParameterValue"] for one in first["Parameters"]}
    values["DatabaseUrl"] = ""  # shown as ****

    def apply(verb: str, **changed: str) -> None:
        getattr(cloudformation, f"{verb}_stack")(
            StackName="second",
            TemplateBody=template["TemplateBody"],
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
            Parameters=[
                {"ParameterKey": key, "ParameterValue": value}
                for key, value in (values | changed).items()
            ],
        )
        wait(f"stack_{verb}_complete")

    def wait(until: str) -> None:
        waiter = cloudformation.get_waiter(until)
        waiter.wait(StackName="second", WaiterConfig={"Delay": 1, "MaxAttempts": 30})

    apply("create")
    assert {"second-worker", "second-reaper", "second-migrate"} <= things(cloud, "second")
    apply("update", BatchSize="20")
    worker = cloud.client("lambda").get_function_configuration(FunctionName="second-worker")
    settings = worker["Environment"]["Variables"]
    assert settings["PGQ_BATCH_SIZE"] == "20"
    group, role = settings["PGQ_ALARM_GROUP"], settings["PGQ_ALARM_ROLE_ARN"]
    alarm = SchedulerAlarm(
        group, role, settings["PGQ_WORKER_ARN"], "second", client=cloud.client("scheduler")
    )
    assert alarm.arm("default", datetime.now(UTC) + timedelta(days=1))
    cloudformation.delete_stack(StackName="second")
    wait("stack_delete_complete")
    assert things(cloud, "second") == set()
