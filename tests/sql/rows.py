"""Jobs as they lie in the table: made and aged by plain SQL, read back whole."""

from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row, scalar_row
from psycopg.types.json import set_json_loads

from pgq_core import Job


class Rows:
    """The rows of `pgq_core.jobs`, seen and changed past the library."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn
        set_json_loads(lambda text: text, conn)  # also what Python could not read

    def add(self, count: int = 1, **columns: Any) -> list[int]:
        """Insert *count* jobs and return their ids; `at` is their run_at in seconds from now."""
        at = columns.pop("at", 0)
        values = {"task": "t", **columns}
        query = sql.SQL(
            "INSERT INTO pgq_core.jobs ({}, run_at) SELECT {}, now() + %(at)s * interval '1 s' "
            "FROM generate_series(1, %(count)s) RETURNING id"
        ).format(
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(map(sql.Placeholder, values)),
        )
        with self.conn.cursor(row_factory=scalar_row) as cursor:
            return cursor.execute(query, {**values, "at": at, "count": count}).fetchall()

    def read(self, job: Job | int) -> dict[str, Any]:
        """Return every column of a job."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute("SELECT * FROM pgq_core.jobs WHERE id = %s", [_id(job)])
            row = cursor.fetchone()
        assert row is not None
        return row

    def all(self, table: str = "jobs") -> list[dict[str, Any]]:
        """Return every column of every job, by id."""
        query = sql.SQL("SELECT * FROM pgq_core.{} ORDER BY id").format(sql.Identifier(table))
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query).fetchall()

    def statuses(self) -> list[str]:
        """Return the statuses of all jobs, by id."""
        return [row["status"] for row in self.all()]

    def change(self, job: Job | int, **columns: Any) -> None:
        """Set columns of a job."""
        query = sql.SQL("UPDATE pgq_core.jobs SET {} WHERE id = %(id)s").format(
            sql.SQL(", ").join(
                sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name))
                for name in columns
            )
        )
        self.conn.execute(query, {**columns, "id": _id(job)})

    def age(self, job: Job | int, column: str, seconds: float) -> None:
        """Put an instant of a job *seconds* before now."""
        query = sql.SQL(
            "UPDATE pgq_core.jobs SET {} = now() - %s * interval '1 s' WHERE id = %s"
        ).format(sql.Identifier(column))
        self.conn.execute(query, [seconds, _id(job)])

    def expire(self, *jobs: Job | int) -> None:
        """Let the leases of *jobs* have ended a second ago."""
        for job in jobs:
            self.age(job, "locked_until", 1)

    def seconds_to(self, job: Job | int, column: str = "run_at") -> float:
        """Return how far off an instant of a job is, by the database's clock."""
        query = sql.SQL(
            "SELECT extract(epoch FROM {} - clock_timestamp())::float8 "
            "FROM pgq_core.jobs WHERE id = %s"
        ).format(sql.Identifier(column))
        with self.conn.cursor(row_factory=scalar_row) as cursor:
            seconds = cursor.execute(query, [_id(job)]).fetchone()
        assert isinstance(seconds, float)
        return seconds


def _id(job: Job | int) -> int:
    return job.id if isinstance(job, Job) else job
