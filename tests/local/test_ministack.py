import io
import json
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from local.ministack import Cloud, ministack
from tests.local.machine import addresses, is_running

HANDLER = """
import importlib.util, os
def handler(event, context):
    names = ["boto3", "psycopg", "aws_lambda_powertools", "pgq_core", "pytest"]
    seen = [name for name in names if importlib.util.find_spec(name)]
    return {"seen": seen, "environment": dict(os.environ), "pid": os.getpid()}
"""


def run_function(cloud: Cloud) -> Any:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("look.py", HANDLER)
    functions = cloud.client("lambda")
    functions.create_function(
        FunctionName="look",
        Runtime="python3.13",
        Handler="look.handler",
        Role="arn:aws:iam::000000000000:role/look",
        Code={"ZipFile": archive.getvalue()},
    )
    return json.load(functions.invoke(FunctionName="look")["Payload"])


def test_a_function_sees_what_lambda_has_and_nothing_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGQ_LEAK", "from the shell")
    with ministack() as cloud:
        answer = run_function(cloud)
    assert answer["seen"] == ["boto3"]
    assert "PGQ_LEAK" not in answer["environment"]


def test_it_is_reachable_on_this_machine_only_and_ends_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ministack() as cloud:
        pid = run_function(cloud)["pid"]
        port = urlsplit(cloud.endpoint).port or 0
        assert addresses(port) == {"127.0.0.1"}
        assert cloud.processes("look") == [pid]
        assert cloud.processes("another") == []
    assert not is_running(pid)
    assert addresses(port) == set()
    assert not list(tmp_path.iterdir())
