"""The doctor: each thing that is wrong, made wrong for real where that is possible, is named."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from local.pgbouncer import pgbouncer
from local.postgres import Server
from pgq_core import Tasks, claim, doctor, enqueue, queues, schedules
from pgq_core.doctor import Deployment, Facts, Finding, examine
from pgq_core.listen import notify
from tests.conftest import Connect

MINUTE = timedelta(minutes=1)
FINE = Facts(datetime(2027, 1, 1, tzinfo=UTC), False, None, False, None, 0, 0, True, 0, 0)  # noqa: FBT003
Look = Callable[..., dict[str, Finding]]


@pytest.fixture
def look(conn: psycopg.Connection) -> Look:
    """Examine the database; return the findings by what was looked at."""

    def look(conn: psycopg.Connection = conn, **deployment: Any) -> dict[str, Finding]:
        return {one.check: one for one in examine(conn, Deployment(**deployment))}

    return look


def judged(findings: Iterator[Finding]) -> dict[str, tuple[str, str]]:
    return {one.check: (one.level, one.seen) for one in findings}


def test_a_healthy_deployment_gets_an_ok_for_each_thing_looked_at(look: Look) -> None:
    tasks = Tasks()
    tasks.handler("t")(lambda _: None)
    found = look(
        tasks=tasks,
        worker_timeout=2 * MINUTE,
        sweep_every=60 * MINUTE,
        suspend_after=5 * MINUTE,
    )
    assert {one.level for one in found.values()} == {"ok"}
    assert list(found) == [
        *[
            "schema",
            "server",
            "permissions",
            "row security",
            "clock",
            "wake-ups",
            "pooler",
            "notify",
            "dead rows",
        ],
        *["snapshots", "replication slots", "autovacuum", "sleep", "tasks"],
    ]
    assert all(one.seen and not one.remedy for one in found.values())
    assert look().keys() == found.keys() - {"sleep", "tasks"}


def test_a_database_without_the_schema_is_told_to_migrate(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as empty:
        [finding] = examine(empty, Deployment())
    assert (finding.level, finding.check) == ("fail", "schema")
    assert "pgq-core migrate" in finding.remedy


def test_a_schema_newer_than_the_code_is_said_to_be(look: Look, conn: psycopg.Connection) -> None:
    conn.execute(
        "INSERT INTO pgq_core.migrations (name, checksum, oldest_code) VALUES ('9999_x', '', 9999)"
    )
    assert "newer than this code" in look()["schema"].seen


@pytest.fixture
def guest(dsn: str, conn: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A role that may do nothing."""
    name = f"{conn.info.dbname}_guest"
    conn.execute(f"CREATE ROLE {name} LOGIN")
    with psycopg.connect(make_conninfo(dsn, user=name), autocommit=True) as guest:
        yield guest
    conn.execute(f"DROP OWNED BY {name}")
    conn.execute(f"DROP ROLE {name}")


def test_a_role_lacks_what_it_lacks(
    look: Look, conn: psycopg.Connection, guest: psycopg.Connection
) -> None:
    [finding] = look(guest).values()
    assert (finding.level, finding.check) == ("fail", "permissions")
    conn.execute(f"GRANT USAGE ON SCHEMA pgq_core TO {guest.info.user}")
    conn.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA pgq_core TO {guest.info.user}")
    conn.execute(f"GRANT INSERT, UPDATE ON pgq_core.jobs TO {guest.info.user}")
    finding = look(guest)["permissions"]
    assert finding.level == "fail"
    assert finding.seen.removeprefix("missing: ").split(", ") == [
        "DELETE on jobs",
        "INSERT on queues",
        "UPDATE on queues",
        "UPDATE on schedules",
        "INSERT on jobs_archive",
    ]
    conn.execute(f"GRANT DELETE ON pgq_core.jobs TO {guest.info.user}")
    conn.execute(f"GRANT INSERT (name), UPDATE (alarm_at) ON pgq_core.queues TO {guest.info.user}")
    conn.execute(f"GRANT UPDATE (next_at) ON pgq_core.schedules TO {guest.info.user}")
    conn.execute(f"GRANT INSERT ON pgq_core.jobs_archive TO {guest.info.user}")
    assert look(guest)["permissions"].level == "ok"


def test_mig_05_row_security_that_hides_jobs_is_named(
    look: Look, conn: psycopg.Connection, guest: psycopg.Connection
) -> None:
    conn.execute(f"GRANT USAGE ON SCHEMA pgq_core TO {guest.info.user}")
    conn.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA pgq_core TO {guest.info.user}")
    conn.execute("ALTER TABLE pgq_core.jobs ENABLE ROW LEVEL SECURITY")
    assert (look(guest)["row security"].level, look()["row security"].level) == ("fail", "ok")
    conn.execute("CREATE POLICY of_another ON pgq_core.jobs TO pg_monitor USING (true)")
    conn.execute("CREATE POLICY to_look_at ON pgq_core.jobs FOR SELECT USING (true)")
    assert look(guest)["row security"].level == "fail"
    conn.execute(f"CREATE POLICY all_of_them ON pgq_core.jobs TO {guest.info.user} USING (true)")
    assert look(guest)["row security"].level == "ok"


def test_a_read_only_server_is_none_to_work_on(look: Look, connect: Connect) -> None:
    replica = connect(options="-c default_transaction_read_only=on")
    assert (look(replica)["server"].level, look()["server"].level) == ("fail", "ok")


@pytest.mark.parametrize(
    ("ahead", "level", "seen"), [(9, "ok", ""), (12, "warn", "+12 s"), (-61, "warn", "-61 s")]
)
def test_a_clock_that_differs_is_named_with_its_sign(
    look: Look, monkeypatch: pytest.MonkeyPatch, ahead: int, level: str, seen: str
) -> None:
    class Shifted:
        @staticmethod
        def now(zone: tzinfo) -> datetime:
            return datetime.now(zone) + timedelta(seconds=ahead)

    monkeypatch.setattr(doctor, "datetime", Shifted)
    found = look()["clock"]
    assert found.level == level
    assert seen in found.seen


def due(conn: psycopg.Connection, minutes: float, **options: Any) -> None:
    enqueue(conn, "t", {}, **options)
    conn.execute(
        "UPDATE pgq_core.jobs SET run_at = now() - %s * interval '1 min'"
        " WHERE id = (SELECT max(id) FROM pgq_core.jobs)",
        [minutes],
    )


def test_a_due_job_for_which_nobody_was_woken_is_named_with_its_queue(
    look: Look, conn: psycopg.Connection
) -> None:
    due(conn, 4, queue="mails")
    found = look()["wake-ups"]
    assert (found.level, found.seen) == ("fail", "mails: due for 0:04:00, and nobody was woken")
    assert "kick" in found.remedy


@pytest.mark.parametrize(
    "excuse",
    [
        "UPDATE pgq_core.jobs SET run_at = now() - interval '2 min'",
        "UPDATE pgq_core.jobs SET run_at = now() + interval '2 min'",
        "UPDATE pgq_core.queues SET paused = true",
        "UPDATE pgq_core.jobs SET status = 'done'",
    ],
)
def test_a_job_that_may_wait_is_none_to_speak_of(
    look: Look, conn: psycopg.Connection, excuse: str
) -> None:
    queues.configure(conn, "default", max_workers=1)
    due(conn, 4)
    assert look()["wake-ups"].level == "fail"
    conn.execute(excuse.encode())
    assert look()["wake-ups"].level == "ok"


def test_a_backlog_behind_a_worker_is_not_left_behind(look: Look, conn: psycopg.Connection) -> None:
    due(conn, 4)
    due(conn, 4)
    claim.claim(conn, "default", 1, MINUTE)
    assert look()["wake-ups"].level == "ok"
    conn.execute("UPDATE pgq_core.jobs SET locked_until = now() - interval '1 s'")
    assert look()["wake-ups"].level == "fail"


def test_lse_13_a_lease_that_nobody_reclaims_and_a_slot_that_nobody_fires_are_left_behind(
    look: Look, conn: psycopg.Connection
) -> None:
    enqueue(conn, "t", {})
    claim.claim(conn, "default", 1, MINUTE)
    conn.execute("UPDATE pgq_core.jobs SET locked_until = now() - interval '4 min'")
    assert "default: due for 0:04:00" in look()["wake-ups"].seen
    conn.execute("DELETE FROM pgq_core.jobs")
    schedules.put(conn, schedules.NewSchedule(name="s", cron="0 0 1 1 *", task="t", queue="cron"))
    assert look()["wake-ups"].level == "ok"
    conn.execute("UPDATE pgq_core.schedules SET next_at = now() - interval '4 min'")
    assert "cron: due for 0:04:00" in look()["wake-ups"].seen
    schedules.pause(conn, "s")
    assert look()["wake-ups"].level == "ok"


@pytest.mark.parametrize(
    ("alarm", "level", "seen"),
    [
        ("- interval '1 min'", "fail", "its alarm was lost"),
        ("+ interval '90 min'", "warn", "nobody comes for 1:30:00"),
    ],
)
def test_an_alarm_that_woke_nobody_or_comes_late_is_told_from_none(
    look: Look, conn: psycopg.Connection, alarm: str, level: str, seen: str
) -> None:
    queues.configure(conn, "default", max_workers=1)
    due(conn, 4)
    conn.execute(f"UPDATE pgq_core.queues SET alarm_at = now() {alarm}".encode())
    found = look()["wake-ups"]
    assert found.level == level
    assert seen in found.seen


def test_a_kick_does_not_excuse_a_job_that_has_waited_for_long(
    conn: psycopg.Connection,
) -> None:
    for queue in ("a", "b", "c"):
        queues.configure(conn, queue, max_workers=1)
        due(conn, 4, queue=queue)
    conn.execute("UPDATE pgq_core.queues SET kick_requested_at = now() WHERE name = 'b'")
    found = [one for one in examine(conn, Deployment()) if one.check == "wake-ups"]
    assert [one.seen[0] for one in found] == ["a", "b", "c"]
    assert "no worker came" in found[1].seen


def test_a_pooler_is_right_for_functions_and_wrong_for_a_listener(
    look: Look, conn: psycopg.Connection, server: Server
) -> None:
    notify(conn, on=True)
    assert look(listens=True)["pooler"].level == "ok"
    with (
        pgbouncer(server, database=conn.info.dbname) as address,
        psycopg.connect(address, autocommit=True) as pooled,
    ):
        assert look(pooled)["pooler"].level == "ok"
        found = look(pooled, listens=True)["pooler"]
    assert found.level == "fail"
    assert "directly" in found.remedy


def test_a_listener_needs_the_trigger_and_nobody_else_does(
    look: Look, conn: psycopg.Connection
) -> None:
    levels = {
        (False, False): "ok",
        (False, True): "fail",
        (True, True): "ok",
        (True, False): "warn",
    }
    for (on, listens), level in levels.items():
        notify(conn, on=on)
        found = look(listens=listens)["notify"]
        assert found.level == level
        assert ("pgq-core notify" in found.remedy) == (level != "ok")
    notify(conn, on=True)
    conn.execute("ALTER TABLE pgq_core.jobs DISABLE TRIGGER jobs_notify")
    assert look(listens=True)["notify"].level == "fail"


def test_dead_rows_are_counted(
    look: Look, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "MANY_DEAD", 15)
    conn.execute("INSERT INTO pgq_core.jobs (task) SELECT 't' FROM generate_series(1, 20)")
    conn.execute("DELETE FROM pgq_core.jobs")
    conn.execute("SELECT pg_stat_force_next_flush()")
    found = look()["dead rows"]
    assert (found.level, found.seen.split()[0]) == ("warn", "20")


def test_clm_05_an_old_snapshot_is_one_that_somebody_else_holds_here(
    look: Look, connect: Connect, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "OLD_SNAPSHOT", timedelta(0))
    idle, elsewhere = connect(), psycopg.connect(server.dsn("postgres"))
    with elsewhere, idle.transaction():
        elsewhere.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        elsewhere.execute("SELECT 1")
        assert look()["snapshots"].level == "ok"
        idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        idle.execute("SELECT 1")
        found = look()["snapshots"]
    assert found.level == "warn"
    assert "has been open" in found.seen


def test_a_replication_slot_that_nobody_reads_is_named() -> None:
    found = judged(doctor._vacuum(replace(FINE, idle_slots=2)))
    assert found["replication slots"] == ("warn", "2 replication slots that nobody reads")


def test_switched_off_autovacuum_fails(look: Look, conn: psycopg.Connection) -> None:
    found = judged(doctor._vacuum(replace(FINE, autovacuum=False)))
    assert found["autovacuum"] == ("fail", "off")
    conn.execute("ALTER TABLE pgq_core.jobs SET (autovacuum_enabled = on)")
    assert look()["autovacuum"].level == "ok"
    conn.execute("ALTER TABLE pgq_core.jobs SET (autovacuum_enabled = off)")
    assert look()["autovacuum"].level == "fail"


SLEEPS = Deployment(suspend_after=5 * MINUTE, sweep_every=60 * MINUTE)


@pytest.mark.parametrize(
    ("facts", "deployment", "seen"),
    [
        (FINE, replace(SLEEPS, sweep_every=5 * MINUTE), "kept awake by a sweep every 0:05:00"),
        (replace(FINE, logical_slots=1), SLEEPS, "kept awake by logical replication"),
        (replace(FINE, vacuuming=1), SLEEPS, "kept awake by an autovacuum worker"),
    ],
)
def test_what_keeps_a_database_awake_that_should_sleep_is_named(
    facts: Facts, deployment: Deployment, seen: str
) -> None:
    assert judged(doctor._sleep(facts, deployment)) == {"sleep": ("warn", seen)}
    assert judged(doctor._sleep(facts, replace(deployment, suspend_after=None))) == {}


def test_every_reason_to_be_awake_is_named() -> None:
    facts = replace(FINE, logical_slots=1, vacuuming=1)
    assert len(list(doctor._sleep(facts, replace(SLEEPS, sweep_every=MINUTE)))) == 3
    assert judged(doctor._sleep(FINE, replace(SLEEPS, sweep_every=6 * MINUTE)))["sleep"][0] == "ok"


@pytest.mark.parametrize(("seconds", "level"), [(113, "ok"), (114, "fail")])
def test_lse_05_a_task_too_long_for_any_invocation_is_named(seconds: int, level: str) -> None:
    tasks = Tasks()
    tasks.handler("short")(lambda _: None)
    tasks.handler("report", timeout=timedelta(seconds=seconds))(lambda _: None)
    deployment = Deployment(tasks=tasks, worker_timeout=2 * MINUTE)
    [finding] = doctor._invocations(deployment)
    assert finding.level == level
    assert ("report" in finding.seen) == (level == "fail")
    assert "short" not in finding.seen


def test_it_changes_nothing(look: Look, conn: psycopg.Connection) -> None:
    due(conn, 4)
    before = conn.execute("SELECT * FROM pgq_core.jobs").fetchall()
    look()
    assert conn.execute("SELECT * FROM pgq_core.jobs").fetchall() == before
    assert conn.execute("SELECT * FROM pgq_core.queues").fetchall() == []
