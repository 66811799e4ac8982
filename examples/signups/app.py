"""The application's side: a user and the job for the welcome mail, in one transaction."""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgq_core import Producer

SCHEMA = """
CREATE TABLE users (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    email text NOT NULL UNIQUE
)
"""
ATOM = r"[\w!#$%&'*+/=?^`{|}~-]+"
ADDRESS = re.compile(rf"{ATOM}(\.{ATOM})*@[a-z0-9-]+(\.[a-z0-9-]+)+", re.ASCII | re.IGNORECASE)
LONGEST = 200  # characters of a name, an address or a line's worth of nonsense


@dataclass(frozen=True, kw_only=True)
class User:
    """Be one who wants to sign up."""

    name: str
    email: str


class Declined(Exception):
    """The user's card was declined: there must be no user, and no mail."""


@dataclass(frozen=True, kw_only=True)
class Application:
    """Be a process of the application: one producer, and as many threads as there are users."""

    dsn: str
    producer: Producer
    charge: Callable[[User], None]

    def sign_up(self, user: User) -> bool:
        """Sign *user* up, on a connection of its own as serverless applications do."""
        with psycopg.connect(self.dsn) as conn:
            return sign_up(conn, self.producer, user, self.charge)


def sign_up(
    conn: psycopg.Connection[Any],
    producer: Producer,
    user: User,
    charge: Callable[[User], None],
) -> bool:
    """Sign *user* up; False if *charge* raised `Declined`, and then nothing has happened."""
    try:
        with producer.transaction(conn) as tx:
            [(user_id,)] = conn.execute(
                "INSERT INTO users (name, email) VALUES (%s, %s) RETURNING id",
                [user.name, user.email],
            )
            tx.enqueue("send_welcome", {"user_id": user_id, "name": user.name, "email": user.email})
            charge(user)
    except Declined:
        return False
    return True


def read_users(path: Path) -> tuple[list[User], list[str]]:
    """Read a CSV file with the columns name and email; return its users, and what is wrong with it.

    A bad line is left out and told in a sentence.

    Raises:
        ValueError, OSError, csv.Error: this is no such file.
    """
    users: dict[str, User] = {}
    problems = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        if not {"name", "email"} <= set(reader.fieldnames or ()):
            raise ValueError("the first line must name the columns: name,email")
        for row in reader:
            user = User(name=(row["name"] or "").strip(), email=(row["email"] or "").strip())
            problem = what_is_wrong(user, users)
            if problem:
                problems.append(f"line {reader.line_num} is left out: {problem}")
            else:
                users[user.email.lower()] = user
    return list(users.values()), problems


def what_is_wrong(user: User, others: dict[str, User]) -> str:
    """Say in a few words why *user* cannot sign up; nothing if all is well."""
    if not 1 <= len(user.name) <= LONGEST or not user.name.isprintable():
        return f"a name of 1 to {LONGEST} printable characters is expected"
    if len(user.email) > LONGEST or not ADDRESS.fullmatch(user.email):
        return f"{user.email[:LONGEST]!r} is not an e-mail address"
    if user.email.lower() in others:
        return f"{user.email} has signed up already"
    return ""
