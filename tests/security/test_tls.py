"""Over the wire: a server far away must prove who it is, and what is said says how."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme

from local.postgres import Server, postgres
from pgq_core import address
from pgq_core.db import Connection
from tests.conftest import OLDEST

NAME = "db.example"
REMEDY = r"name the file of its certificate authority \(sslrootcert=/path"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def secure(authority: trustme.CA) -> Iterator[Server]:
    """A server with TLS on, whose certificate is for NAME and signed by nobody known.

    Debian's, for the other one was built without TLS.
    """
    with postgres(OLDEST) as server:
        certificate = authority.issue_cert(NAME)
        chain = b"".join(one.bytes() for one in certificate.cert_chain_pems)
        owner = server._data.stat()
        for name, pem in (
            ("server.crt", chain),
            ("server.key", certificate.private_key_pem.bytes()),
        ):
            path = server._data / name
            path.write_bytes(pem)
            path.chmod(0o600)  # the server takes no key that others may read
            os.chown(path, owner.st_uid, owner.st_gid)
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET ssl = on")
        server.restart("fast")
        yield server


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


def far(server: Server, host: str, **options: Any) -> Connection:
    """Connect to the server by a name that counts as another machine's; libpq asks no resolver."""
    dsn = f"postgresql://postgres@{host}:{server.port}/postgres"
    return address.connect(address.read(dsn) | options, hostaddr="127.0.0.1")


def test_a_server_whose_authority_nobody_knows_is_refused_and_the_remedy_named(
    secure: Server,
) -> None:
    with pytest.raises(psycopg.OperationalError, match=f"certificate verify failed.*{REMEDY}"):
        far(secure, NAME)


def test_a_server_of_another_name_is_refused(secure: Server, ca_file: Path) -> None:
    with pytest.raises(psycopg.OperationalError, match=r'"db\.example" does not match host name'):
        far(secure, "other.example", sslrootcert=str(ca_file))


def test_a_server_that_can_prove_its_name_is_connected_to_over_tls(
    secure: Server, ca_file: Path
) -> None:
    with far(secure, NAME, sslrootcert=str(ca_file)) as conn:
        assert conn.pgconn.ssl_in_use


def test_a_server_without_tls_is_refused_and_the_remedy_named(
    server: Server, ca_file: Path
) -> None:
    with pytest.raises(psycopg.OperationalError, match=f"does not support SSL.*{REMEDY}"):
        far(server, NAME, sslrootcert=str(ca_file))


def test_a_remedy_that_was_named_works(secure: Server, server: Server) -> None:
    with far(secure, NAME, sslmode="require") as conn:
        assert conn.pgconn.ssl_in_use
    with far(server, NAME, sslmode="disable") as conn:
        assert not conn.pgconn.ssl_in_use
