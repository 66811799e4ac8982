from concurrent.futures import ThreadPoolExecutor

import psycopg
from psycopg.conninfo import conninfo_to_dict

from local.pgbouncer import pgbouncer
from local.postgres import Server
from tests.local.machine import addresses


def test_clients_share_two_server_connections_a_transaction_at_a_time(server: Server) -> None:
    with pgbouncer(server, database="postgres", pool_size=2) as dsn:

        def backend(_: int) -> int:
            with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
                pids = {conn.execute("SELECT pg_backend_pid()").fetchone() for _ in range(20)}
            return len(pids)

        with ThreadPoolExecutor(6) as pool:
            assert max(pool.map(backend, range(6))) <= 2
        assert addresses(int(str(conninfo_to_dict(dsn)["port"]))) == {"127.0.0.1"}


def test_what_a_session_sets_is_left_for_the_next_client(server: Server) -> None:
    """There is no server_reset_query, as in production: a SET of ours would be seen by others."""
    with pgbouncer(server, database="postgres", pool_size=1) as dsn:
        with psycopg.connect(dsn, autocommit=True) as first:
            first.execute("SET application_name = 'left behind'")
        with psycopg.connect(dsn, autocommit=True, application_name="") as second:
            assert second.execute("SELECT pg_backend_pid()").fetchone() is not None
            row = second.execute("SHOW application_name").fetchone()
    assert row == ("left behind",)
