"""Schedules, queues, notifications, a worker that stays and the doctor, from the command line."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cli.shell import COMMAND, SECRET, Run, document, environment, statuses, the_error
from tests.worker.fakes import until

ADD = ["cron", "add", "nightly", "30 2 * * *", "greet"]


def schedule(here: Run, name: str = "nightly") -> dict[str, Any]:
    rows = document(here("cron", "list", "--json"))["schedules"]
    [found] = [row for row in rows if row["name"] == name]
    assert isinstance(found, dict)
    return found


def test_a_schedule_is_added_with_its_options_shown_and_changed(
    here: Run, conn: psycopg.Connection
) -> None:
    options = ["--timezone=Asia/Tokyo", "--queue=q", "--priority=1", "--max-attempts=2", "--json"]
    added = document(here(*ADD, '{"name": "Zoë"}', *options))
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT17:30:00\+00:00", added["next_at"])
    assert added == {"name": "nightly", "next_at": added["next_at"], "kick": "none"}
    assert schedule(here) == {
        "name": "nightly",
        "cron": "30 2 * * *",
        "timezone": "Asia/Tokyo",
        "task": "greet",
        "queue": "q",
        "paused": False,
        "in_code": False,
        "next_at": added["next_at"],
        "fired_at": None,
    }
    row = conn.execute("SELECT payload, priority, max_attempts FROM pgq_core.schedules").fetchone()
    assert row == ({"name": "Zoë"}, 1, 2)
    document(here(*ADD, "--json"))
    assert (schedule(here)["timezone"], schedule(here)["queue"]) == ("UTC", "default")


def test_a_schedule_takes_its_payload_from_standard_input(
    here: Run, conn: psycopg.Connection
) -> None:
    document(here(*ADD, "-", "--json", stdin=b'{"a": 1}'))
    assert conn.execute("SELECT payload FROM pgq_core.schedules").fetchone() == ({"a": 1},)


def test_a_schedule_is_paused_resumed_and_removed(here: Run, aws: str) -> None:
    document(here(*ADD, "--json"))
    assert document(here("cron", "pause", "nightly", "--json")) == {
        "name": "nightly",
        "paused": True,
    }
    assert schedule(here)["paused"]
    resumed = here("cron", "resume", "nightly", "--kick=shop", "--json", AWS_ENDPOINT_URL=aws)
    assert document(resumed) == {"name": "nightly", "paused": False, "kick": "sent"}
    assert not schedule(here)["paused"]
    assert document(here("cron", "remove", "nightly", "--json"))["removed"]
    assert here("cron", "list").stdout.split() == ["schedules", "none"]


def test_the_kick_after_adding_a_schedule_goes_to_its_queue(
    here: Run, aws: str, conn: psycopg.Connection
) -> None:
    added = here(*ADD, "--queue=q", "--kick=shop", "--json", AWS_ENDPOINT_URL=aws)
    assert document(added)["kick"] == "sent"
    assert conn.execute("SELECT name FROM pgq_core.queues").fetchall() == [("q",)]


def test_a_schedule_whose_payload_is_too_long_is_wrong_usage(here: Run) -> None:
    payload = b'{"a": "' + b"x" * 300_000 + b'"}'
    assert "at most 262144 are allowed" in the_error(here(*ADD, "-", stdin=payload), 2)


@pytest.mark.parametrize("verb", ["pause", "resume", "remove"])
def test_a_schedule_that_is_not_there_is_one_line_and_exit_1(here: Run, verb: str) -> None:
    assert "'nightly'" in the_error(here("cron", verb, "nightly"), 1)


def test_a_schedule_of_the_code_is_not_changed_by_hand(here: Run, conn: psycopg.Connection) -> None:
    document(here(*ADD, "--json"))
    conn.execute("UPDATE pgq_core.schedules SET in_code = true")
    assert "in code" in the_error(here(*ADD, "--queue=other"), 2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["cron"], "cron --help"),
        (["cron", "add"], "NAME"),
        (["cron", "add", "n", "* * * *", "t"], "five fields"),
        (["cron", "add", "n", "0 0 30 2 *", "t"], "day-of-month"),
        (["cron", "add", "n", "61 * * * *", "t"], "minute"),
        (["cron", "add", "n", "* * * * *", "t", "--timezone=Mars/Olympus"], "Mars/Olympus"),
        (["cron", "add", "n", "* * * * *", "t", "[]"], "payload"),
        (["cron", "add", "n", "* * * * *", "t", "{"], "payload"),
        (["cron", "add", "n", "* * * * *", "", "{}"], "task"),
        (["cron", "add", "", "* * * * *", "t"], "name"),
        (["cron", "add", "n", "* * * * *", "t", "--queue="], "queue"),
        (["cron", "add", "n", "* * * * *", "t", "--priority=11"], "priority"),
        (["queues"], "queues --help"),
        (["queues", "set", "q"], "--max-workers"),
        (["queues", "set", "q", "--max-workers=0"], "--max-workers"),
        (["queues", "set", "", "--max-workers=1"], "queue"),
        (["queues", "pause"], "QUEUE"),
        (["notify", "maybe"], "on"),
        (["doctor", "--suspend-after=soon"], "--suspend-after"),
        (["doctor", "--tasks=nowhere:tasks"], "nowhere"),
        (["doctor", "--worker-timeout=7"], "--worker-timeout"),
    ],
)
def test_wrong_usage_is_one_line_that_names_it_and_exit_2(
    here: Run, conn: psycopg.Connection, arguments: list[str], named: str
) -> None:
    assert named in the_error(here(*arguments), 2)
    assert conn.execute("SELECT * FROM pgq_core.schedules").fetchall() == []


def test_a_worker_that_stays_does_not_on_an_unmigrated_database(run: Run, empty_dsn: str) -> None:
    done = run("worker", "--tasks=jobs:tasks", dsn=empty_dsn)
    assert "pgq-core migrate" in the_error(done, 1)


def test_a_queue_is_set_up_paused_resumed_and_listed(here: Run, aws: str) -> None:
    document(here("queues", "set", "mails", "--max-workers=3", "--new", "--json"))
    document(here("queues", "pause", "mails", "--json"))
    [queue] = document(here("queues", "list", "--json"))["queues"]
    assert (queue["queue"], queue["max_workers"], queue["paused"]) == ("mails", 3, True)
    resumed = here("queues", "resume", "mails", "--kick=shop", "--json", AWS_ENDPOINT_URL=aws)
    assert document(resumed) == {"queue": "mails", "paused": False, "kick": "sent"}
    [queue] = document(here("queues", "list", "--json"))["queues"]
    assert (queue["max_workers"], queue["paused"]) == (3, False)


@pytest.mark.parametrize("command", ["set --max-workers=3", "pause", "resume"])
def test_a_queue_that_nobody_has_used_is_taken_for_mistyped(here: Run, command: str) -> None:
    here("enqueue", "greet", "--queue=mails")
    line = the_error(here("queues", *command.split(), "mail"), 1)
    assert "there is no queue 'mail'; see pgq-core queues list" in line
    assert here("queues", *command.split(), "mails").returncode == 0


def test_notifications_are_switched_on_and_off(here: Run, conn: psycopg.Connection) -> None:
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgname = 'jobs_notify'"
    assert document(here("notify", "on", "--json")) == {"notify": "on"}
    assert conn.execute(triggers).fetchone() == (1,)
    document(here("notify", "off", "--json"))
    assert conn.execute(triggers).fetchone() == (0,)


@pytest.fixture
def stay(dsn: str, folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a worker that stays; it is gone after the test."""
    started: list[subprocess.Popen[str]] = []

    def stay(*options: str) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [*COMMAND, "worker", "--tasks=jobs:tasks", *options],
            cwd=folder,
            env=environment(dsn),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(worker)
        return worker

    yield stay
    for worker in started:
        worker.kill()
        worker.communicate()


def listens(conn: psycopg.Connection) -> bool:
    """Tell whether a worker has drained once and waits."""
    row = conn.execute("SELECT count(*) FROM pgq_core.queues").fetchone()
    return row == (1,)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_stays_runs_what_it_is_told_of_and_ends_when_asked(
    here: Run, conn: psycopg.Connection, stay: Any, folder: Path, number: signal.Signals
) -> None:
    document(here("notify", "on", "--json"))
    worker = stay("--fallback=off")
    until(lambda: listens(conn), 20)
    document(here("enqueue", "greet", '{"name": "Zoë"}', "--json"))
    until((folder / "greeted").exists)
    worker.send_signal(number)
    out, err = worker.communicate(timeout=10)
    assert (worker.returncode, re.findall(r"[1-9]\d*", out)) == (0, ["1", "1"]), out
    assert err.splitlines() == [
        "pgq-core: listening (queue=default)",
        "pgq-core: finishing the job; a second signal interrupts it",
    ]
    assert statuses(conn) == [("done", 1, 0)]


def test_a_worker_that_stays_finishes_its_job_and_hands_back_the_rest(
    here: Run, conn: psycopg.Connection, stay: Any, folder: Path
) -> None:
    for _ in range(3):
        document(here("enqueue", "slow", "--json"))
    worker = stay("--json")
    until((folder / "started").exists, 20)
    worker.send_signal(signal.SIGTERM)
    until(lambda: "finishing" in worker.stderr.readline())
    (folder / "go").touch()
    out, _ = worker.communicate(timeout=10)
    assert worker.returncode == 0
    told = json.loads(out)
    assert {name: told[name] for name in told if told[name]} == {
        "claimed": 3, "done": 1, "released": 2,
    }  # fmt: skip
    assert statuses(conn) == [("done", 1, 0), ("queued", 1, 1), ("queued", 1, 1)]


def test_a_worker_that_stays_without_notifications_says_so_and_looks_now_and_then(
    here: Run, conn: psycopg.Connection, stay: Any, folder: Path
) -> None:
    worker = stay("--fallback=1s")
    until(lambda: listens(conn), 20)
    document(here("enqueue", "greet", '{"name": "Zoë"}', "--json"))
    until((folder / "greeted").exists)
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=10)
    assert "pgq-core: inserts send no notification: run `pgq-core notify on`\n" in err


def test_the_doctor_says_what_is_well_and_exits_0(here: Run) -> None:
    done = here("doctor", "--tasks=jobs:tasks", "--suspend-after=5m", "--json")
    findings = document(done)["findings"]
    assert {one["level"] for one in findings} == {"ok"}
    assert {"schema", "wake-ups", "sleep", "tasks"} <= {one["check"] for one in findings}
    assert here("doctor").stdout.split()[:4] == ["level", "check", "seen", "remedy"]


def test_the_doctor_exits_1_if_anything_fails_and_shows_it_all(here: Run) -> None:
    done = here("doctor", "--listens", "--json")
    assert done.returncode == 1
    assert '"remedy": "pgq-core notify on"' in done.stdout
    done = here("doctor", "--tasks=jobs:tasks", "--worker-timeout=30")
    assert done.returncode == 1
    assert re.search(r"^fail +tasks +longer than the 0:00:23 .*greet", done.stdout, re.MULTILINE)
    done = here("doctor", "--suspend-after=2h")
    assert done.returncode == 0, "a warning is no failure"
    assert re.search(r"^warn +sleep +kept awake by a sweep", done.stdout, re.MULTILINE)


def test_the_doctor_of_an_unmigrated_database_is_a_finding(run: Run, empty_dsn: str) -> None:
    done = run("doctor", dsn=empty_dsn)
    assert done.returncode == 1
    assert re.search(r"^fail +schema +.*pgq-core migrate", done.stdout, re.MULTILINE)
    assert done.stderr == ""


def test_the_doctor_of_no_database_is_one_line(here: Run) -> None:
    line = the_error(here("doctor", dsn=f"postgresql://me:{SECRET}@127.0.0.1:1/app"), 1)
    assert "127.0.0.1" in line


def test_a_missing_cron_extra_is_one_line_that_names_it(run: Run, folder: Path) -> None:
    (folder / "cronsim.py").write_text("raise ImportError")
    env = {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    line = the_error(run(*ADD, **env), 1)
    assert line == 'pgq-core: cron needs cronsim: pip install "pgq-core[cron]"\n'
