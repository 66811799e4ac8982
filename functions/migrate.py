"""Bring the schema up to date: invoked by hand, or by a pipeline, after each deploy."""

from aws_lambda_powertools.utilities.typing import LambdaContext

import pgq_core
from pgq_core import schedules
from pgq_core.errors import ConfigError

from . import _runtime as runtime


@runtime.function
def handler(event: object, context: LambdaContext) -> list[str]:  # noqa: ARG001 - any event will do
    """Apply the missing migrations and return their names; make the schedules those of the code.

    The kick wakes a worker for each queue with a schedule, which arms the alarm for its next slot.

    Raises:
        ConfigError: a task fits no invocation, so the worker fails its jobs; the rest is done.
    """
    with runtime.connect("migrate") as conn:
        names = pgq_core.migrate(conn)
        queues = schedules.sync(conn, runtime.registry().schedules)
        pgq_core.Producer(runtime.kick()).kick(conn, queues)
    runtime.logger.info("migrated", extra={"migrations": names, "scheduled_queues": queues})
    limit = runtime.longest()
    if too_long := runtime.registry().longer_than(limit):
        raise ConfigError(
            f"the worker fails the jobs of {', '.join(too_long)}: an invocation leaves them "
            f"{limit.total_seconds():g} s; raise WorkerTimeout or lower the tasks' timeouts"
        )
    return names
