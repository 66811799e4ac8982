"""Every error of ours; what was only *expected* to happen is a return value instead.

PgqError
├── ConfigError      a setting is missing or wrong (also a ValueError)
├── OpenTransaction  the connection is inside somebody's transaction
├── SchemaMismatch   the database's schema `pgq_core` and this code do not fit
├── SchemaLocked     a migration waited in vain for a lock of somebody else
├── LeaseLost        the job is no longer held by the attempt that writes
├── BadPayload       a stored payload or header cannot be decoded
└── JobTimeout       a handler ran past its timeout

Bad arguments raise the builtin `ValueError` or `TypeError`; the driver's own errors pass through,
their text the server's primary message alone: its detail may show a row, and is left in `diag`.
"""


class PgqError(Exception):
    """Be the root of every error that pgq_core raises by itself."""


class ConfigError(PgqError, ValueError):
    """Say which setting is missing or wrong and what is expected there."""


class OpenTransaction(PgqError):
    """Refuse a connection inside a transaction whose commit could not be seen."""

    def __init__(self, status: str) -> None:
        """Name the *status* the connection was found in."""
        super().__init__(
            f"the connection is {status}, so its commit could not be seen and nobody would be "
            "woken: commit or roll back first, or use enqueue() now and producer.kick() after "
            "your own commit"
        )


class SchemaMismatch(PgqError):
    """Say how the database's schema and this code differ, before anything is claimed."""


class SchemaLocked(PgqError):
    """Tell a migrator that another session kept it waiting for too long; it changed nothing."""

    def __init__(self, migration: str) -> None:
        """Name the *migration* whose turn it was."""
        super().__init__(
            f"migration {migration} waited a minute for a lock and changed nothing: another "
            "migration or a long transaction holds it; let that end, or end it (pg_stat_activity "
            "names its process), then migrate again"
        )


class LeaseLost(PgqError):
    """Tell a worker that the attempt it holds no longer owns the job; nothing was changed."""

    def __init__(self, job_id: int, attempts: int) -> None:
        """Name the job and the claim that lost it."""
        super().__init__(
            f"job {job_id} is no longer held by its claim number {attempts}: the lease expired "
            "and was reclaimed, or the job was cancelled; stop working on it"
        )
        self.job_id = job_id
        self.attempts = attempts


class BadPayload(PgqError):
    """Say why a stored payload or header cannot be decoded; such a job fails alone, for good."""


class JobTimeout(PgqError):
    """Interrupt a handler that ran past its timeout; it counts as a failed attempt."""
