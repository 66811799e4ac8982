"""One database for all the walks, so that what one has found out serves the next."""

from collections.abc import Iterator

import psycopg
import pytest

from local.postgres import Server
from tests.conftest import database
from tests.model.reality import Reality


@pytest.fixture(scope="module")
def reality(server: Server, template: str) -> Iterator[Reality]:
    for dsn in database(server, template):
        with psycopg.connect(dsn, autocommit=True) as conn:
            yield Reality(conn)
