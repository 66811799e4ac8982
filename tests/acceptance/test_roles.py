"""Each role of the stack may do what its function does, and nothing else that was tried.

The emulator checks each call against the policies that the template made (AUTH=true). But it takes
each schedule for one of the group "default", a log's stream for none of its group, and any role
that is passed to the scheduler. So alarms, logs and what the schedules may do are asked of its
simulator, which weighs the same policies; and who may take or pass a role is read in the policies
themselves.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from examples.signups.stage import Stack
from local.ministack import REGION

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("acceptance"),
]

Clients = Callable[[str], Any]

ROLES = ["WorkerName", "ReaperName"]  # the reaper's is the migrate function's, too
ARN = f"{REGION}:000000000000"
OTHER = "another-secret"
#: By action; harmless to the stack where they are allowed.
ATTEMPTS: dict[str, Callable[[Clients], object]] = {
    "lambda:InvokeFunction": lambda by: by("lambda").invoke(
        FunctionName="signups-reaper", InvocationType="DryRun"
    ),
    "lambda:InvokeFunction of a longer name": lambda by: by("lambda").invoke(
        FunctionName="signups-worker-2", InvocationType="DryRun"
    ),
    "lambda:GetFunction": lambda by: by("lambda").get_function(FunctionName="signups-worker"),
    "lambda:DeleteFunction": lambda by: by("lambda").delete_function(FunctionName="signups-none"),
    "lambda:UpdateFunctionCode": lambda by: by("lambda").update_function_code(
        FunctionName="signups-none", ZipFile=b"none"
    ),
    "lambda:UpdateFunctionConfiguration": lambda by: by("lambda").update_function_configuration(
        FunctionName="signups-none", Timeout=60
    ),
    "lambda:ListFunctions": lambda by: by("lambda").list_functions(),
    "secretsmanager:GetSecretValue": lambda by: by("secretsmanager").get_secret_value(
        SecretId=OTHER
    ),
    "secretsmanager:PutSecretValue": lambda by: by("secretsmanager").put_secret_value(
        SecretId=OTHER, SecretString="changed"
    ),
    "secretsmanager:ListSecrets": lambda by: by("secretsmanager").list_secrets(),
    "scheduler:DeleteSchedule": lambda by: by("scheduler").delete_schedule(
        GroupName="signups-alarms", Name="none"
    ),
    "scheduler:ListSchedules": lambda by: by("scheduler").list_schedules(),
    "logs:FilterLogEvents": lambda by: by("logs").filter_log_events(
        logGroupName="/aws/lambda/signups-worker"
    ),
    "iam:AttachRolePolicy": lambda by: by("iam").attach_role_policy(
        RoleName="none", PolicyArn="arn:aws:iam::aws:policy/AdministratorAccess"
    ),
    "iam:ListRoles": lambda by: by("iam").list_roles(),
    "s3:ListAllMyBuckets": lambda by: by("s3").list_buckets(),
    "cloudformation:DeleteStack": lambda by: by("cloudformation").delete_stack(StackName="none"),
}


def role_of(stack: Stack, output: str) -> str:
    name = stack.outputs[output]
    found = stack.cloud.client("lambda").get_function_configuration(FunctionName=name)
    return str(found["Role"])


def roles(stack: Stack) -> dict[str, Any]:
    found = stack.cloud.client("iam").list_roles()["Roles"]
    return {
        one["RoleName"].split("-")[1]: one
        for one in found
        if one["RoleName"].startswith("signups-")
    }


@pytest.fixture(scope="module")
def owner(stack: Stack) -> Clients:
    """Clients of whom the account belongs to."""
    return cache(stack.cloud.client)


@pytest.fixture(scope="module", params=ROLES)
def function(stack: Stack, owner: Clients, request: pytest.FixtureRequest) -> Clients:
    """Clients that are a function's role, which the emulator gives to the owner, too."""
    arn = role_of(stack, request.param)
    key = owner("sts").assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"]
    made: Any = boto3.Session(
        key["AccessKeyId"], key["SecretAccessKey"], key["SessionToken"], region_name=REGION
    )
    return cache(lambda service: made.client(service, endpoint_url=stack.cloud.endpoint))


def allowed(attempt: Callable[[Clients], object], by: Clients) -> bool:
    try:
        attempt(by)
    except ClientError as error:
        return error.response["Error"]["Code"] not in ("AccessDenied", "AccessDeniedException")
    return True


def may(owner: Clients, role_arn: str, action: str, resource: str) -> bool:
    """Ask the simulator."""
    [result] = owner("iam").simulate_principal_policy(
        PolicySourceArn=role_arn, ActionNames=[action], ResourceArns=[f"arn:aws:{resource}"]
    )["EvaluationResults"]
    return bool(result["EvalDecision"] == "allowed")


def statements(owner: Clients, role_arn: str) -> list[Any]:
    """All that the policies of a role say."""
    iam, found = owner("iam"), []
    name = role_arn.rpartition("/")[2]
    assert iam.list_role_policies(RoleName=name)["PolicyNames"] == []
    for policy in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        arn = policy["PolicyArn"]
        version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        got = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]
        found += got["Document"]["Statement"]
    return found


@pytest.fixture
def other_secret(owner: Clients) -> Iterator[None]:
    """One that is none of ours."""
    owner("secretsmanager").create_secret(Name=OTHER, SecretString="none of ours")
    yield
    owner("secretsmanager").delete_secret(SecretId=OTHER, ForceDeleteWithoutRecovery=True)


def test_a_function_may_read_the_databases_secret_and_kick_the_worker(
    stack: Stack, function: Clients
) -> None:
    assert function("secretsmanager").get_secret_value(SecretId="database")["SecretString"]
    kick = function("lambda").invoke(
        FunctionName=stack.outputs["WorkerArn"], InvocationType="DryRun"
    )
    assert kick["StatusCode"] == 204


@pytest.mark.usefixtures("other_secret")
def test_a_function_is_refused_what_it_does_not_do(owner: Clients, function: Clients) -> None:
    assert [action for action in ATTEMPTS if allowed(ATTEMPTS[action], function)] == []
    # So it was not for another reason.
    assert [action for action in ATTEMPTS if not allowed(ATTEMPTS[action], owner)] == []


@pytest.mark.parametrize("output", ROLES)
def test_a_function_may_set_alarms_in_the_stacks_own_group_only(
    stack: Stack, owner: Clients, output: str
) -> None:
    role = role_of(stack, output)

    def may_with(action: str, schedule: str) -> bool:
        return may(owner, role, f"scheduler:{action}", f"scheduler:{ARN}:schedule/{schedule}")

    assert may_with("CreateSchedule", "signups-alarms/a")
    assert not may_with("CreateSchedule", "signups-alarms-2/a")
    assert not may_with("CreateSchedule", "another/a")
    assert not may_with("UpdateSchedule", "signups-alarms/a")
    assert not may_with("DeleteSchedule", "signups-alarms/a")


@pytest.mark.parametrize("output", ROLES)
def test_a_function_may_write_into_the_stacks_own_logs_only(
    stack: Stack, owner: Clients, output: str
) -> None:
    role = role_of(stack, output)

    def may_with(action: str, log: str) -> bool:
        stream = f"logs:{ARN}:log-group:/aws/lambda/{log}:log-stream:a"
        return may(owner, role, f"logs:{action}", stream)

    assert may_with("CreateLogStream", stack.outputs[output])
    assert may_with("PutLogEvents", stack.outputs[output])
    assert not may_with("PutLogEvents", "signups-worker-2")
    assert not may_with("GetLogEvents", stack.outputs[output])


@pytest.mark.parametrize("output", ROLES)
def test_a_function_may_pass_the_schedulers_role_to_the_scheduler_only(
    stack: Stack, owner: Clients, output: str
) -> None:
    found = statements(owner, role_of(stack, output))
    assert [one for one in found if "iam:" in str(one["Action"])] == [
        {
            "Effect": "Allow",
            "Action": "iam:PassRole",
            "Resource": roles(stack)["SchedulerRole"]["Arn"],
            "Condition": {"StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}},
        }
    ]


def test_the_schedules_may_invoke_the_worker_and_the_reaper_only(
    stack: Stack, owner: Clients
) -> None:
    role = roles(stack)["SchedulerRole"]["Arn"]

    def may_with(action: str, function: str) -> bool:
        return may(owner, role, f"lambda:{action}", f"lambda:{ARN}:function:{function}")

    assert may_with("InvokeFunction", "signups-worker")
    assert may_with("InvokeFunction", "signups-reaper")
    assert not may_with("InvokeFunction", "signups-migrate")
    assert not may_with("InvokeFunction", "signups-worker-2")
    assert not may_with("DeleteFunction", "signups-worker")


def test_a_role_is_only_for_the_service_it_is_made_for(stack: Stack) -> None:
    trust = {
        name: role["AssumeRolePolicyDocument"]["Statement"] for name, role in roles(stack).items()
    }
    to_lambda = {
        "Effect": "Allow",
        "Principal": {"Service": "lambda.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    group = f"arn:aws:scheduler:{ARN}:schedule-group/signups-alarms"
    to_scheduler = to_lambda | {
        "Principal": {"Service": "scheduler.amazonaws.com"},
        "Condition": {
            "StringEquals": {"aws:SourceAccount": "000000000000", "aws:SourceArn": group}
        },
    }
    assert trust == {
        "WorkerRole": to_lambda,
        "KeeperRole": to_lambda,
        "SchedulerRole": [to_scheduler],
    }
