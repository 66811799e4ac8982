"""The soak, short: with all that is in it but crashes and restarts, whose leases take a minute."""

import psycopg
import pytest

from bench import soak
from local.postgres import Server, postgres
from pgq_core import migrate


def test_a_short_soak_finds_every_job_ended_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "JOBS", 400)
    monkeypatch.setattr(soak, "BULK", 100)
    monkeypatch.setattr(soak, "SAMPLE", 0.5)
    monkeypatch.setattr(soak, "REAP", 1.0)
    monkeypatch.setitem(soak.PLAN, "crash", (10_000, 9_999))
    server: Server
    with postgres() as server:
        facts = soak.soak(server)
    assert facts["wrong"] == dict.fromkeys(soak.WRONG, 0)
    assert facts["spent"] == [(1, 380), (2, 20)]
    assert "| jobs that never ended | 0 |" in soak.page(facts, "18")


def test_the_soak_sees_what_is_lost_repeated_or_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "JOBS", 21)
    server: Server
    with postgres() as server, psycopg.connect(server.dsn(), autocommit=True) as conn:
        migrate(conn)
        conn.execute(soak.TABLES)
        conn.execute("SELECT pgq_core.enqueue('work', '{}')")
        conn.execute("INSERT INTO effects VALUES (0), (0)")
        ends = "INSERT INTO ended SELECT n, 'plain', status, 1 FROM generate_series(1, 10) AS n,"
        conn.execute(f"{ends} (VALUES ('done'), ('failed')) AS twice (status)".encode())
        found = soak.wrong(server.dsn())
    assert list(found.values()) == [11, 10, 1, 10, 2, 1, 2]
