"""What forces an order upon two connections: the fixtures of the statements' tests."""

from tests.sql.conftest import background, blocked, job, locked, rows

__all__ = ["background", "blocked", "job", "locked", "rows"]
