"""Where the database is: nothing of a wrong string is shown; to go elsewhere TLS is the rule."""

import ssl
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from local.postgres import Server
from pgq_core import address
from pgq_core.errors import ConfigError

Asked = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("postgresql://u:se@cret@db.example/app", "no connection string"),
        ("postgresql://u:se/cret@db.example/app", "no connection string"),
        ("secret", "no connection string"),
        ("host=db.example secret=1", "a parameter"),
        ("postgresql://u:se\udcffcret@db.example/app", "no connection string"),
    ],
)
def test_a_wrong_string_is_refused_and_nothing_of_it_is_shown(dsn: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^THERE .*{said}") as refused:
        address.read(dsn, "THERE")
    assert "cret" not in str(refused.value)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return what is asked of libpq for a connection string and an environment."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(psycopg, "connect", lambda **options: given.update(options))

    def asked(dsn: str, **env: str) -> dict[str, Any]:
        given.clear()
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            address.connect(address.read(dsn))
        return {name: given[name] for name in ("sslmode", "sslrootcert") if name in given}

    return asked


BUNDLE = ssl.get_default_verify_paths().cafile or "system"
VERIFIED = {"sslmode": "verify-full", "sslrootcert": BUNDLE}


@pytest.mark.parametrize(
    ("dsn", "env", "expected"),
    [
        ("postgresql://u@db.example/app", {}, VERIFIED),
        ("", {"PGHOST": "db.example"}, VERIFIED),
        ("hostaddr=192.0.2.1", {}, VERIFIED),
        ("host=localhost,db.example", {}, VERIFIED),
        ("host=localhost.example", {}, VERIFIED),
        ("host=db.example sslrootcert=/ca", {}, VERIFIED | {"sslrootcert": "/ca"}),
        ("host=db.example", {"PGSSLROOTCERT": "/ca"}, {"sslmode": "verify-full"}),
        ("host=db.example sslmode=require", {}, {"sslmode": "require"}),
        ("host=db.example", {"PGSSLMODE": "disable"}, {}),
        ("service=app", {}, {}),
        ("", {"PGHOSTADDR": "192.0.2.1"}, VERIFIED),
        ("host=db.example", {"PGPASSWORD": "no UTF-8: \udcff"}, VERIFIED),
        ("host=localhost hostaddr=192.0.2.1", {}, VERIFIED),
        ("host=db.example hostaddr=127.0.0.1", {}, {}),
        ("host=127.example.com", {}, VERIFIED),
        ("host=db.example", {"PGSSLMODE": ""}, VERIFIED),
        ("postgresql://u@127.0.0.1/app", {}, {}),
        ("postgresql://u@[::1]/app", {}, {}),
        ("postgresql:///app", {}, {}),
        ("host=/run/postgresql", {}, {}),
        ("host=localhost,127.0.0.2", {}, {}),
    ],
)
def test_another_machine_is_to_prove_who_it_is_unless_told_otherwise(
    asked: Asked, dsn: str, env: dict[str, str], expected: dict[str, str]
) -> None:
    assert asked(dsn, **env) == expected


def test_an_encoding_of_its_own_is_no_hindrance(server: Server) -> None:
    with address.connect(address.read(f"{server.dsn()}?client_encoding=latin1")) as conn:
        assert conn.info.encoding == "utf-8"


def test_without_tls_the_remedy_is_named_and_works(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_is_local", lambda _: False)
    parts = address.read(server.dsn())
    with pytest.raises(psycopg.OperationalError, match=r"sslrootcert=/path .* sslmode=disable"):
        address.connect(parts)
    with address.connect(parts | {"sslmode": "disable"}) as conn:
        assert (conn.autocommit, conn.prepare_threshold) == (True, None)
