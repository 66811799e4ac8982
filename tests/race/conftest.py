"""What forces an order upon two connections: the fixtures of the statements' tests."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import psycopg
import pytest

from tests.conftest import Connect
from tests.sql.conftest import background, blocked, job, locked, rows

__all__ = ["background", "blocked", "job", "locked", "rows"]

ISOLATION = {
    "read committed": "",
    "repeatable read": r"-c default_transaction_isolation=repeatable\ read",
    "serializable": "-c default_transaction_isolation=serializable",
}

AtOnce = Callable[..., list[Any]]


@pytest.fixture(params=list(ISOLATION.values()), ids=list(ISOLATION))
def isolation(request: pytest.FixtureRequest) -> str:
    """The options of a connection that has each level of isolation as its default."""
    options = request.param
    assert isinstance(options, str)
    return options


@pytest.fixture
def at_once(connect: Connect) -> Iterator[AtOnce]:
    """Run functions at the same moment, each with a connection of its own; return their answers."""
    with ThreadPoolExecutor(max_workers=32) as pool:

        def at_once(*acts: Callable[[psycopg.Connection], Any], options: str = "") -> list[Any]:
            barrier = Barrier(len(acts), timeout=30)

            def run(act: Callable[[psycopg.Connection], Any]) -> Any:
                conn = connect(options=options)
                barrier.wait()
                return act(conn)

            return [future.result(timeout=50) for future in [pool.submit(run, a) for a in acts]]

        yield at_once
