"""The cloud that the sign-ups run on: this repository's own stack, deployed on this machine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.ministack import Cloud
from local.sam import build_and_deploy

FOLDER = Path(__file__).parent
#: Waits in the demo are to be short: these are settings of the stack, the product is the same.
SHORT = {"WorkerTimeout": "15", "ConnectTimeout": "5", "SweepSchedule": "rate(1 minute)"}
#: The emulator's own: Lambda's retries of a crashed invocation come when they come at AWS.
SETTINGS = {
    "LAMBDA_ASYNC_RETRY_BASE_SECONDS": "60",
    "LAMBDA_ASYNC_RETRY_MAX_SECONDS": "120",
}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Be the deployed stack: its functions by the names of its outputs."""

    cloud: Cloud
    outputs: Mapping[str, str]

    def invoke(self, output: str, event: object = None) -> Any:  # noqa: ANN401 - whatever it answers
        """Invoke a function and wait for its answer; raise RuntimeError with its error."""
        answer = self.cloud.client("lambda").invoke(
            FunctionName=self.outputs[output], Payload=json.dumps(event).encode()
        )
        text = answer["Payload"].read().decode()
        if "FunctionError" in answer:
            raise RuntimeError(f"{self.outputs[output]} failed: {text}")
        return json.loads(text)

    def log(self, output: str) -> list[str]:
        """Return what a function has logged; an invocation's lines come when it ends."""
        pages = self.cloud.client("logs").get_paginator("filter_log_events")
        group = f"/aws/lambda/{self.outputs[output]}"
        return [
            event["message"]
            for page in pages.paginate(logGroupName=group)
            for event in page["events"]
        ]


def deploy(cloud: Cloud, *, mail_port: int, **parameters: str) -> Stack:
    """Deploy the stack with the handlers of this folder, and migrate its database.

    *parameters* are the template's; one of them must name the database.
    """
    given = {
        "TasksModule": "signups.tasks:tasks",
        "AppSettings": f"smtp://127.0.0.1:{mail_port}",
        **SHORT,
        **parameters,
    }
    outputs = build_and_deploy(cloud, stack="signups", tasks_folder=FOLDER, parameters=given)
    stack = Stack(cloud=cloud, outputs=outputs)
    stack.invoke("MigrateName")
    return stack
