"""The template, as it is and as SAM expands it."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from samcli.yamlhelper import yaml_parse  # type: ignore[import-untyped]
from samtranslator.translator.transform import transform  # type: ignore[import-untyped]

from pgq_core.config import PREFIX, Settings

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ACCOUNT = {"Partition": "aws", "Region": "eu-west-1", "AccountId": "1" * 12, "StackName": "mine"}


class NoManagedPolicies:
    """Stand for the list of AWS's policies that SAM would ask IAM for; none is named here."""

    def load(self) -> dict[str, str]:
        return {}


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text())
    return parsed


@pytest.fixture(scope="module")
def expanded() -> dict[str, Any]:
    """What CloudFormation gets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        parsed = yaml_parse((ROOT / "template.yaml").read_text())
        parsed["Globals"]["Function"]["CodeUri"] = "s3://bucket/package"
        result: dict[str, Any] = transform(parsed, {}, NoManagedPolicies())
    return result


def resources(expanded: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {
        name: resource.get("Properties", {})
        for name, resource in expanded["Resources"].items()
        if resource["Type"] == kind
    }


def walk(node: object) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from walk(child)
    elif isinstance(node, list):
        for child in node:
            yield from walk(child)


def defaults(template: dict[str, Any]) -> dict[str, str]:
    """The worker's environment in a stack whose parameters are left at their defaults."""
    given = {"TasksModule": "app.jobs:tasks"}
    variables = template["Globals"]["Function"]["Environment"]["Variables"]
    values = {}
    for name, value in variables.items():
        match value:
            case {"Ref": parameter} if parameter in template["Parameters"]:
                default = template["Parameters"][parameter].get("Default", given.get(parameter))
                values[name] = str(default)
            case {"Fn::Sub": text}:
                values[name] = re.sub(r"\$\{AWS::(\w+)\}", lambda m: ACCOUNT[m[1]], text)
            case {"Fn::GetAtt": ["SchedulerRole", "Arn"]}:
                values[name] = f"arn:aws:iam::{ACCOUNT['AccountId']}:role/mine-SchedulerRole-1A"
    return values


@pytest.mark.parametrize(
    "command",
    [
        ["sam", "validate", "--lint", "--region", "eu-west-1"],
        ["cfn-lint", "--regions", "eu-west-1", "--", "infra/watch.yaml"],
    ],
)
def test_sam_and_cfn_lint_find_nothing(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAM_CLI_TELEMETRY", "0")
    ran = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_variable_is_a_setting_and_every_setting_a_variable(
    template: dict[str, Any],
) -> None:
    variables = template["Globals"]["Function"]["Environment"]["Variables"]
    assert {name for name in variables if name.startswith(PREFIX)} == {
        PREFIX + one.name.upper() for one in fields(Settings)
    }


def test_a_stack_with_default_parameters_has_the_settings_defaults(
    template: dict[str, Any],
) -> None:
    settings = Settings.from_env(defaults(template))
    assert settings.wakeups
    for one in fields(Settings):
        if one.type is not str:
            assert getattr(settings, one.name) == one.default, one.name


@pytest.mark.parametrize("bound", ["MinValue", "MaxValue"])
def test_what_a_parameter_allows_the_setting_allows(template: dict[str, Any], bound: str) -> None:
    variables = template["Globals"]["Function"]["Environment"]["Variables"]
    environ = defaults(template)
    for name, value in variables.items():
        parameter = template["Parameters"].get(value.get("Ref"), {})
        if name.startswith(PREFIX) and bound in parameter:
            environ[name] = str(parameter[bound])
    # The two bound each other; no template can say so, Settings does.
    Settings.from_env(environ | {"PGQ_CONNECT_TIMEOUT": "5"})


def test_lse_05_the_lease_and_the_timeout_come_from_one_parameter(template: dict[str, Any]) -> None:
    """A lease is what is left of the invocation; which tasks fit into one, the variable says."""
    function = template["Resources"]["WorkerFunction"]["Properties"]
    variables = template["Globals"]["Function"]["Environment"]["Variables"]
    assert function["Timeout"] == variables["PGQ_WORKER_TIMEOUT"] == {"Ref": "WorkerTimeout"}


def test_lam_15_retries_are_set_for_the_qualifier_that_is_kicked(expanded: dict[str, Any]) -> None:
    configs = {
        config["FunctionName"]["Ref"]: config
        for config in resources(expanded, "AWS::Lambda::EventInvokeConfig").values()
    }
    assert configs.keys() == resources(expanded, "AWS::Lambda::Function").keys()
    assert not resources(expanded, "AWS::Lambda::Alias")
    assert expanded["Outputs"]["WorkerName"]["Value"] == {"Ref": "WorkerFunction"}  # unqualified
    worker = configs["WorkerFunction"]
    assert worker["Qualifier"] == "$LATEST"
    assert worker["MaximumRetryAttempts"] == 2
    longest = expanded["Parameters"]["WorkerTimeout"]["MaxValue"]
    assert worker["MaximumEventAgeInSeconds"] > 2 * longest + 180


def test_lam_16_no_resource_needs_itself(expanded: dict[str, Any]) -> None:
    names = expanded["Resources"].keys()
    graph = {}
    for name, resource in expanded["Resources"].items():
        needed = {node["Ref"] for node in walk(resource) if "Ref" in node}
        needed |= {node["Fn::GetAtt"][0] for node in walk(resource) if "Fn::GetAtt" in node}
        for node in walk(resource):
            text = node.get("Fn::Sub", "")
            needed |= set(re.findall(r"\$\{(\w+)", text if isinstance(text, str) else text[0]))
        graph[name] = needed & names
    assert len(list(TopologicalSorter(graph).static_order())) == len(names)
    assert "SchedulerRole" in graph["WorkerFunction"]  # the walk does see references


def test_only_the_worker_may_invoke_itself(expanded: dict[str, Any]) -> None:
    loops = {
        name: function.get("RecursiveLoop")
        for name, function in resources(expanded, "AWS::Lambda::Function").items()
    }
    assert loops == {"WorkerFunction": "Allow", "ReaperFunction": None, "MigrateFunction": None}


def test_every_permission_is_for_named_actions_on_exact_arns(expanded: dict[str, Any]) -> None:
    statements = [node for node in walk(expanded["Resources"]) if "Effect" in node]
    assert len(statements) == 10
    for statement in statements:
        assert "*" not in str(statement["Action"])
        resource = str(statement.get("Resource", ""))
        # The alarms of the stack's own group, whose names are made as they are armed.
        assert "*" not in resource.replace("schedule/${AWS::StackName}-alarms/*", "")
        assert resource or "Principal" in statement


def test_each_functions_permissions_are_what_it_needs(expanded: dict[str, Any]) -> None:
    functions = resources(expanded, "AWS::Lambda::Function")
    roles = {name: function["Role"]["Fn::GetAtt"][0] for name, function in functions.items()}
    assert roles == {
        "WorkerFunction": "WorkerRole",
        "ReaperFunction": "KeeperRole",
        "MigrateFunction": "KeeperRole",
    }
    policies = resources(expanded, "AWS::IAM::ManagedPolicy")
    actions = {
        name: {str(s["Action"]) for s in walk(policy["PolicyDocument"]) if "Action" in s}
        for name, policy in policies.items()
    }
    assert actions == {
        "FunctionPolicy": {
            "['logs:CreateLogStream', 'logs:PutLogEvents']",
            "secretsmanager:GetSecretValue",
        },
        "WakeupPolicy": {
            "lambda:InvokeFunction",
            "scheduler:CreateSchedule",
            "iam:PassRole",
        },
        "ProducerPolicy": {"lambda:InvokeFunction"},
    }
    attached = resources(expanded, "AWS::IAM::Role")
    wakeups = {"Fn::If": ["WakesUp", {"Ref": "WakeupPolicy"}, {"Ref": "AWS::NoValue"}]}
    for role in ("WorkerRole", "KeeperRole"):
        assert wakeups in attached[role]["ManagedPolicyArns"]


def test_lam_07_both_sweeps_fire_at_one_minute_and_bear_no_fixed_name(
    expanded: dict[str, Any],
) -> None:
    sweeps = resources(expanded, "AWS::Scheduler::Schedule")
    assert sweeps.keys() == {"WorkerFunctionSweep", "ReaperFunctionSweep"}
    times = {name: sweep["ScheduleExpression"]["Ref"] for name, sweep in sweeps.items()}
    assert times == {
        "WorkerFunctionSweep": "SweepSchedule",
        "ReaperFunctionSweep": "ReaperSchedule",
    }
    defaults = {expanded["Parameters"][name]["Default"] for name in times.values()}
    assert len(defaults) == 1
    for sweep in sweeps.values():
        assert sweep["FlexibleTimeWindow"] == {"Mode": "OFF"}
        assert "Name" not in sweep
    assert sweeps["WorkerFunctionSweep"]["Target"]["Input"] == '{"queue": "*"}'
    # Once an hour; and two schedules of rate(1 hour) would each count from when they were made.
    assert re.fullmatch(r"cron\(\d+ \* \* \* \? \*\)", defaults.pop())


def test_every_handler_named_is_there(template: dict[str, Any]) -> None:
    handlers = [
        resource["Properties"]["Handler"]
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::Serverless::Function"
    ]
    assert len(handlers) == 3
    for handler in handlers:
        module, _, name = handler.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_every_log_group_ends_what_it_keeps(expanded: dict[str, Any]) -> None:
    groups = resources(expanded, "AWS::Logs::LogGroup")
    assert {str(group["RetentionInDays"]) for group in groups.values()} == {
        "{'Ref': 'LogRetentionDays'}"
    }
    for function in resources(expanded, "AWS::Lambda::Function").values():
        assert function["LoggingConfig"]["LogGroup"]["Ref"] in groups


def test_the_alarms_watch_what_is_published(expanded: dict[str, Any]) -> None:
    watch = yaml_parse((ROOT / "infra/watch.yaml").read_text())
    alarms = resources(watch, "AWS::CloudWatch::Alarm")
    ours = [alarm for alarm in alarms.values() if alarm["Namespace"] == "pgq_core"]
    source = (ROOT / "functions/reaper.py").read_text()
    assert [alarm["MetricName"] for alarm in ours] == ["oldest_due"]
    assert '"oldest_due"' in source
    nested = expanded["Resources"]["Watch"]
    assert nested["Condition"] == "HasAlarmTopic"
    assert nested["Properties"]["Parameters"].keys() <= watch["Parameters"].keys()


def test_the_build_packs_for_what_the_stack_runs_on_by_default(template: dict[str, Any]) -> None:
    make = (ROOT / "infra/package.mk").read_text()
    chosen = dict(re.findall(r"^(RUNTIME|ARCHITECTURE) \?= (\S+)$", make, re.MULTILINE))
    parameters = template["Parameters"]
    assert chosen == {
        "RUNTIME": parameters["Runtime"]["Default"],
        "ARCHITECTURE": parameters["Architecture"]["Default"],
    }


def test_the_package_ships_the_versions_that_are_tested() -> None:
    def pinned(path: str) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / path).read_text(), re.MULTILINE))

    shipped, tested = pinned("functions/requirements.txt"), pinned("requirements-dev.lock")
    assert shipped.keys() >= {"psycopg", "psycopg-binary", "aws-lambda-powertools"}
    assert "boto3" not in shipped  # the runtime brings it
    assert shipped.items() <= tested.items()
