"""The real PgBouncer, from Debian's packages, in transaction mode."""

from collections.abc import Iterator
from contextlib import contextmanager

from local.postgres import Server
from local.process import answers, as_nobody, free_port, nursery
from local.programs import debian_program, runnable

# No server_reset_query, as in production: what a session leaves behind, the next client sees.
CONFIG = """
[databases]
* = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
server_reset_query =
"""


@contextmanager
def pgbouncer(server: Server, *, database: str, pool_size: int = 2) -> Iterator[str]:
    """Run a PgBouncer before the server; give the connection string of *database* through it."""
    with nursery("pgbouncer", owner=as_nobody()) as place:
        found = runnable(debian_program("usr/sbin/pgbouncer"), place.folder)
        port = free_port()
        config = place.folder / "pgbouncer.ini"
        config.write_text(CONFIG.format(server_port=server.port, port=port, pool_size=pool_size))
        child = place.start([found.bin / "pgbouncer", config], env=found.env, user=as_nobody())
        child.wait_until(lambda: answers(port))
        yield f"postgresql://postgres@127.0.0.1:{port}/{database}"
