"""Bring the schema up to date: invoked by hand, or by a pipeline, after each deploy."""

from aws_lambda_powertools.utilities.typing import LambdaContext

import pgq_core

from . import _runtime as runtime


@runtime.function
def handler(event: object, context: LambdaContext) -> list[str]:  # noqa: ARG001 - any event will do
    """Apply the missing migrations and return their names."""
    with runtime.connect("migrate") as conn:
        names = pgq_core.migrate(conn)
    runtime.logger.info("migrated", extra={"migrations": names})
    return names
