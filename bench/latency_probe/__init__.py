"""The worker's side of `bench.latency`: the deployed worker with a clock at each of its steps.

`handler` stands in the place of `functions.worker.handler`, notes when it was entered, and goes on
with that. The task sends the clock's readings back by UDP, after the last of them was taken.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import pgq_core.worker
from functions import _runtime, worker
from pgq_core import Job, Tasks

tasks = Tasks()
read: dict[str, int] = {}


def send(**facts: int) -> None:
    """Tell the benchmark."""
    host, port = os.environ["APP_SETTINGS"].split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(json.dumps(facts).encode(), (host, int(port)))


def timed(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    """Note when *inner* begins and ends, the first time of an invocation."""

    @wraps(inner)
    def outer(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it takes and gives
        read.setdefault(f"{name}_begins", time.time_ns())
        result = inner(*args, **options)
        read.setdefault(f"{name}_ends", time.time_ns())
        return result

    return outer


_runtime.connect = timed("connect", _runtime.connect)
loop = vars(pgq_core.worker)
loop["take"] = timed("claim", loop["take"])


@tasks.handler("note")
def note(job: Job) -> None:
    """Be the job whose start is waited for."""
    send(job=job.id, started=time.time_ns(), **read)


def handler(event: object, context: Any) -> object:  # noqa: ANN401 - Lambda's
    """Be the worker."""
    entered = time.time_ns()
    read.clear()
    read["entered"] = entered
    try:
        return worker.handler(event, context)
    finally:
        send(ended=time.time_ns())
