"""Where the database is: a connection string, read without ever showing it, and TLS to go there.

Used by the edges that open the database themselves, the command line and the functions. What is
said of a wrong string shows nothing of it, for a piece of the password may stand anywhere in it.
"""

import re
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from os import fsdecode
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from .db import Connection
from .errors import ConfigError

Parts = dict[str, Any]

_WRONG = (
    "is no connection string: expected postgresql://user:password@host:5432/database, "
    "special characters of the password as %-codes"
)
_UNKNOWN = (
    "has a parameter (after the ?, or before an =) that libpq does not know: correct it, or write "
    "special characters of the password as %-codes"
)
_CA = (
    "the server is to prove who it is: name the file of its certificate authority "
    "(sslrootcert=/path in the connection string; Amazon RDS: global-bundle.pem), or say "
    "sslmode=require to go without that proof, sslmode=disable without TLS"
)


#: A peer that is gone without a word is noticed within a minute.
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


def read(dsn: str, where: str = "DATABASE_URL") -> Parts:
    """Return the parts of the connection string that the variable *where* holds.

    Raises:
        ConfigError: it is none, or a bare @ or / of the password has cut it in the wrong place, so
            that a piece of the password passes for a host, a port or a database.
    """
    try:
        parts = conninfo_to_dict(dsn)
    except (psycopg.ProgrammingError, UnicodeError) as error:  # its text may show the password
        unknown = re.match("invalid (URI query parameter|connection option)", str(error))
        raise ConfigError(f"{where} {_UNKNOWN if unknown else _WRONG}") from None
    names = f"{parts.get('host', '')}{parts.get('dbname', '')}"
    if "@" in names or re.fullmatch(r"[\d,]*", str(parts.get("port", ""))) is None:
        raise ConfigError(f"{where} {_WRONG}")
    return parts


def connect(parts: Mapping[str, Any], **options: Any) -> Connection:  # noqa: ANN401 - libpq's
    """Open an autocommit connection; to another machine over TLS, the server's name verified.

    An `sslmode` that is given, there or in PGSSLMODE, is left as it is; but PGSSLMODE=prefer is
    libpq's own default, and cannot be told from none. Nothing is prepared and
    nothing set at start-up, since a pooler in transaction mode refuses both.

    Raises:
        psycopg.OperationalError: there is no way in; a missing certificate is named with a remedy.
    """
    tls = _tls(parts)
    try:
        return psycopg.connect(
            # A role's own encoding may not hold what jobs do.
            **{**tls, **_KEEPALIVES, **parts, **options, "client_encoding": "utf8"},
            autocommit=True,
            prepare_threshold=None,
        )
    except psycopg.OperationalError as error:
        if tls and re.search("certificate|SSL", str(error)):
            raise psycopg.OperationalError(f"{error}; {_CA}") from None
        raise


def _tls(parts: Mapping[str, Any]) -> Parts:
    told = (one for one in Conninfo.get_defaults() if one.val != one.compiled)
    # A variable may be of any bytes, the password's too.
    known = {one.keyword.decode(): fsdecode(one.val or b"") for one in told} | dict(parts)
    given = {name: value for name, value in known.items() if value}
    hosts = given.get("hostaddr") or given.get("host") or ""
    if {"sslmode", "service"} & given.keys() or all(map(_is_local, str(hosts).split(","))):
        return {}
    # libpq's own word "system" finds nothing where psycopg brings an OpenSSL of its own.
    bundle = {"sslrootcert": ssl.get_default_verify_paths().cafile or "system"}
    return {"sslmode": "verify-full"} | ({} if "sslrootcert" in given else bundle)


def _is_local(host: str) -> bool:
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
