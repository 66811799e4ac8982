"""The commands as a shell script sees them: one document or table, one line of error, one code."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from pgq_core.terminal import show
from tests.cli.shell import (
    COMMAND,
    SECRET,
    Run,
    document,
    environment,
    start_slow_worker,
    statuses,
    terminal,
    the_error,
)


def test_version_and_help_need_no_database_and_no_boto3(run: Run) -> None:
    assert re.fullmatch(r"pgq-core \d+\.\d+\.\d+\n", run("--version", dsn="nonsense").stdout)
    assert "Exit codes" in run("--help", dsn="nonsense").stdout
    code = "import sys, pgq_core.cli; sys.exit('boto3' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_extra_is_one_sentence_and_exit_2(folder: Path) -> None:
    code = (
        "import sys, importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'rich' else find(name, *a);"
        "from pgq_core.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert 'needs rich; pip install "pgq-core[cli]"' in the_error(done, 2)


def test_migrate_applies_once_and_says_what(here: Run, empty_dsn: str) -> None:
    assert document(here("migrate", "--json", dsn=empty_dsn))["applied"][0] == "0001_queue"
    assert document(here("migrate", "--json", dsn=empty_dsn)) == {"applied": []}
    assert here("migrate", dsn=empty_dsn).stdout.split() == ["applied", "none"]


def test_migrate_makes_the_schedules_those_of_the_code(
    run: Run, here: Run, folder: Path, empty_dsn: str, aws: str
) -> None:
    """As the function does that migrates, for who has none."""
    shop = "from pgq_core import Tasks\ntasks = Tasks()\n"
    nightly = "tasks.cron('0 2 * * *')(tasks.handler('report', queue='mails')(lambda job: None))"
    (folder / "shop.py").write_text(shop + nightly)
    migrate = ["migrate", "--tasks=shop:tasks", "--json"]
    answer = document(run(*migrate, "--kick=shop", dsn=empty_dsn, AWS_ENDPOINT_URL=aws))
    assert (answer["scheduled_queues"], answer["kick"]) == (["mails"], "sent")
    [row] = document(here("cron", "list", "--json", dsn=empty_dsn))["schedules"]
    assert (row["task"], row["in_code"]) == ("report", True)
    (folder / "shop.py").write_text(shop)
    answer = document(run(*migrate, dsn=empty_dsn))
    assert answer == {"applied": [], "scheduled_queues": [], "kick": "none"}
    assert document(here("cron", "list", "--json", dsn=empty_dsn)) == {"schedules": []}


def test_migrate_kicks_the_queues_of_schedules_only(here: Run) -> None:
    assert "--kick goes with --tasks" in the_error(here("migrate", "--kick=shop"), 2)


def test_a_schema_newer_than_the_code_is_refused(here: Run, conn: psycopg.Connection) -> None:
    conn.execute(
        "INSERT INTO pgq_core.migrations (name, checksum, oldest_code) VALUES ('9999_x', '', 9999)"
    )
    assert "newer than this code" in the_error(here("status"), 1)


def test_enqueue_worker_and_status_tell_the_story_of_a_job(
    run: Run, folder: Path, conn: psycopg.Connection
) -> None:
    enqueued = document(run("enqueue", "greet", '{"name": "Zoë"}', "--json"))
    assert enqueued == {"id": enqueued["id"], "inserted": True, "kick": "none"}
    [queue] = document(run("status", "--json"))["queues"]
    assert (queue["queue"], queue["ready"], queue["paused"]) == ("default", 1, False)
    assert queue["oldest_seconds"] > 0
    report = document(run("worker", "--once", "--json", PGQ_TASKS="jobs:tasks"))
    assert (report["claimed"], report["done"]) == (1, 1)
    assert (folder / "greeted").read_text() == "Zoë"
    assert statuses(conn) == [("done", 1, 0)]


def test_status_of_an_empty_database_is_an_empty_list(here: Run) -> None:
    assert document(here("status", "--json")) == {"queues": []}
    assert here("status").stdout.split() == ["queues", "none"]


def test_enqueue_takes_its_payload_from_standard_input(run: Run, conn: psycopg.Connection) -> None:
    document(run("enqueue", "greet", "-", "--json", stdin='{"name": "Zoë"}'.encode()))
    assert conn.execute("SELECT payload FROM pgq_core.jobs").fetchone() == ({"name": "Zoë"},)


def test_enqueue_passes_every_option_on(here: Run, conn: psycopg.Connection) -> None:
    document(
        here(
            *["enqueue", "greet", "--queue=my_lane", "--delay=2h", "--priority=1"],
            *["--max-attempts=3", "--unique-key=k", "--json"],
        )
    )
    row = conn.execute(
        "SELECT queue, priority, max_attempts, unique_key,"
        " round(extract(epoch FROM run_at - created_at))::int, payload FROM pgq_core.jobs"
    ).fetchone()
    assert row == ("my_lane", 1, 3, "k", 7200, {})


def test_enqueue_takes_an_instant_with_its_offset(here: Run, conn: psycopg.Connection) -> None:
    document(here("enqueue", "greet", "--run-at=2030-01-31T09:00:00+01:00", "--json"))
    row = conn.execute("SELECT run_at = '2030-01-31 08:00Z' FROM pgq_core.jobs").fetchone()
    assert row == (True,)


def test_a_second_job_with_the_same_key_is_answered_with_the_first(here: Run) -> None:
    first = document(here("enqueue", "greet", "--unique-key=k", "--json"))
    second = document(here("enqueue", "greet", "--unique-key=k", "--json"))
    assert second == {"id": first["id"], "inserted": False, "kick": "none"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["enqueue"], "TASK"),
        (["enqueue", ""], "task"),
        (["enqueue", "greet", "{"], "payload"),
        (["enqueue", "greet", "[" * 100_000], "payload"),
        (["enqueue", "greet", "[1]"], "payload"),
        (["enqueue", "greet", '{"a": [NaN]}'], "payload.a[0]"),
        (["enqueue", "greet", '{"a": "\\u0000"}'], "payload.a"),
        (["enqueue", "greet", '{"a": "\\ud800"}'], "payload.a"),
        (["enqueue", "greet", "--queue="], "queue"),
        (["enqueue", "greet", "--delay=soon"], "--delay"),
        (["enqueue", "greet", "--delay=" + "9" * 400], "--delay"),
        (["enqueue", "greet", "--delay=11000d"], "delay"),
        (["enqueue", "greet", "--delay=99999999999d"], "'99999999999d' is no duration"),
        (["enqueue", "greet", "--delay=999999999.999999999d"], "is no duration"),
        (["enqueue", "greet", "--kick="], "--kick"),
        (["enqueue", "greet", "--run-at=noon"], "--run-at"),
        (["enqueue", "greet", "--run-at=2030-01-01"], "time zone"),
        (["enqueue", "greet", "--run-at=2030-01-01T00:00Z", "--delay=1"], "not both"),
        (["enqueue", "greet", "--priority=10"], "priority"),
        (["enqueue", "greet", "--max-attempts=0"], "max_attempts"),
        (["enqueue", "greet", "--unique-key="], "unique_key"),
        (["worker", "--tasks=jobs:tasks", "--wait=1"], "--once"),
        (["worker", "--tasks=jobs:tasks", "--once", "--fallback=1"], "--fallback"),
        (["worker", "--tasks=jobs:tasks", "--fallback=0.5"], "--fallback"),
        (["worker", "--once"], "--tasks"),
        (["worker", "--once", "--tasks=jobs"], "module:attribute"),
        (["worker", "--once", "--tasks=nowhere:tasks"], "nowhere"),
        (["worker", "--once", "--tasks=jobs:no_tasks"], "no_tasks"),
        (["worker", "--once", "--tasks=jobs:tasks", "--batch-size=0"], "--batch-size"),
        (["worker", "--once", "--tasks=jobs:tasks", "--queue="], "--queue"),
        (["reap", "--keep-done=-1"], "--keep-done"),
        (["reap", "--keep-done=1d"], "such as 7 or 0.5"),
        (["reap", "--keep-failed=nan"], "--keep-failed"),
        (["reap", "--keep-failed=3651"], "0 to 3650"),
        (["reap", "--queue="], "--queue"),
        (["frobnicate"], "frobnicate"),
        (["status", "--frobnicate"], "--frobnicate"),
        ([], "--help"),
    ],
)
def test_wrong_usage_is_one_line_that_names_it_and_exit_2(
    here: Run, conn: psycopg.Connection, arguments: list[str], named: str
) -> None:
    assert named in the_error(here(*arguments), 2)
    assert statuses(conn) == []


@pytest.mark.parametrize(
    "stdin",
    [b"", b"\xff", b'{"a": "' + b"x" * 300_000 + b'"}'],
    ids=["empty", "no text", "too long"],
)
def test_a_payload_on_standard_input_that_cannot_be_is_exit_2(here: Run, stdin: bytes) -> None:
    assert "payload" in the_error(here("enqueue", "greet", "-", stdin=stdin), 2)


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql+psycopg://me:{SECRET}@127.0.0.1/app",
        f"postgresql://me:x/{SECRET}@127.0.0.1/app",
        f"postgresql://me:x@{SECRET}@127.0.0.1/app",
        f"postgresql://me:{SECRET}%zz@127.0.0.1/app",
        f"host=127.0.0.1 password=x {SECRET}",
        f"postgresql://me:{SECRET}@127.0.0.1/app?connect_timeout=soon",
    ],
)
def test_a_database_url_that_is_none_is_exit_2_and_not_shown(here: Run, dsn: str) -> None:
    assert "DATABASE_URL" in the_error(here("status", dsn=dsn), 2)


@pytest.mark.parametrize(
    ("url", "variable", "named"),
    [
        ("?connect_timeout=soon", "", "connect_timeout in DATABASE_URL"),
        ("", "soon", "PGCONNECT_TIMEOUT"),
        (f"?{SECRET}=1", "", "that libpq does not know"),
    ],
)
def test_a_wrong_parameter_of_the_database_is_told_from_a_wrong_url(
    here: Run, url: str, variable: str, named: str
) -> None:
    dsn = f"postgresql://me:{SECRET}@127.0.0.1/app{url}"
    assert named in the_error(here("status", dsn=dsn, PGCONNECT_TIMEOUT=variable), 2)


def test_no_database_is_one_line_and_exit_1(here: Run) -> None:
    line = the_error(here("status", dsn=f"postgresql://me:{SECRET}@127.0.0.1:1/app"), 1)
    assert "127.0.0.1" in line
    assert "DATABASE_URL" in line


def test_the_pg_variables_name_the_database_where_there_is_no_url(here: Run, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        info = conn.info
        variables = {
            "PGHOST": info.host,
            "PGPORT": str(info.port),
            "PGUSER": info.user,
            "PGDATABASE": info.dbname,
        }
    assert document(here("status", "--json", dsn="", **variables)) == {"queues": []}


def test_a_row_that_the_database_refuses_is_not_shown(here: Run, conn: psycopg.Connection) -> None:
    conn.execute("ALTER TABLE pgq_core.jobs ADD CONSTRAINT house CHECK (task <> 'greet')")
    line = the_error(here("enqueue", "greet", json.dumps({"card": SECRET})), 1)
    assert "house" in line


def test_a_role_that_may_not_is_told_so(here: Run, dsn: str, conn: psycopg.Connection) -> None:
    database = conn.info.dbname
    conn.execute(f"CREATE ROLE {database}_guest LOGIN")
    try:
        other = psycopg.conninfo.make_conninfo(dsn, user=f"{database}_guest")
        assert "permission denied" in the_error(here("enqueue", "greet", dsn=other), 1)
    finally:
        conn.execute(f"DROP ROLE {database}_guest")


def test_a_failed_kick_is_a_line_on_stderr_for_the_job_is_in(run: Run) -> None:
    done = run("enqueue", "greet", "--kick=shop-worker", "--json")
    assert document(done)["kick"] == "failed"
    assert re.fullmatch(r"pgq-core: kick not sent to shop-worker: [^\n]+\n", done.stderr)


def test_a_kick_is_sent_once_while_it_is_pending(here: Run, aws: str) -> None:
    """In this process: a kick is pending for 5 s, and a new one may take as long to start."""
    enqueue = ["enqueue", "greet", "--kick=shop-worker", "--json"]
    assert document(here(*enqueue, AWS_ENDPOINT_URL=aws))["kick"] == "sent"
    assert document(here(*enqueue, AWS_ENDPOINT_URL=aws))["kick"] == "coalesced"


def test_a_failed_job_is_logged_with_its_facts_and_no_failure_of_the_worker(
    run: Run, here: Run
) -> None:
    job = document(here("enqueue", "fail", "--max-attempts=1", "--json"))["id"]
    done = run("worker", "--once", "--tasks=jobs:tasks", "--json")
    assert document(done)["failed"] == 1
    facts = f"task=fail attempt=1 max_attempts=1 job_id={job}"
    assert f"pgq-core: handler raised ({facts})\n" in done.stderr
    assert "RuntimeError: no luck" in done.stderr


def test_what_a_log_line_tells_of_a_job_steers_nothing(run: Run, here: Run) -> None:
    document(here("enqueue", "a\x1b[2Jb", "--json"))
    done = run("worker", "--once", "--tasks=jobs:tasks")
    assert r"task=a\x1b[2Jb" in done.stderr
    assert "\x1b" not in done.stderr


def test_what_the_locale_cannot_write_is_escaped(run: Run, here: Run) -> None:
    document(here("enqueue", "grüß", "--json"))
    assert r"gr\xfc\xdf" in run("jobs", "list", PYTHONIOENCODING="ascii").stdout


def test_aws_is_imported_to_kick_only(run: Run) -> None:
    quiet = run("enqueue", "greet", PYTHONPROFILEIMPORTTIME="1").stderr
    loud = run("enqueue", "greet", "--kick=shop", PYTHONPROFILEIMPORTTIME="1").stderr
    assert (" boto3\n" in quiet, " boto3\n" in loud) == (False, True)


CHATTY = """
import subprocess
from pgq_core import Tasks

print("from the module")
tasks = Tasks()

@tasks.handler("greet")
def greet(job):
    print("from the handler")
    subprocess.run(["echo", "from its child"], check=True)
"""


def test_what_handlers_print_does_not_spoil_the_document(run: Run, here: Run, folder: Path) -> None:
    (folder / "chatty.py").write_text(CHATTY)
    document(here("enqueue", "greet", "--json"))
    done = run("worker", "--once", "--tasks=chatty:tasks", "--json")
    assert document(done)["done"] == 1
    assert {"from the module", "from the handler", "from its child"} <= {*done.stderr.splitlines()}
    assert document(run("doctor", "--tasks=chatty:tasks", "--json"))["findings"]
    document(here("enqueue", "greet", "--json"))
    assert "from the handler" in run("worker", "--once", "--tasks=chatty:tasks").stdout


def test_reap_puts_expired_leases_back_and_removes_what_is_old(
    run: Run, here: Run, conn: psycopg.Connection
) -> None:
    conn.execute(
        "INSERT INTO pgq_core.jobs (task, payload, status, attempts, max_attempts, locked_until)"
        " VALUES ('a', '{}', 'running', 1, 5, now() - interval '1 s'),"
        " ('b', '{}', 'running', 1, 1, now() - interval '1 s'),"
        " ('c', '{}', 'running', 1, 1, now() + interval '1 min')"
    )
    conn.execute(
        "INSERT INTO pgq_core.jobs (task, payload, status, finished_at)"
        " VALUES ('d', '{}', 'done', now() - interval '8 days'),"
        " ('e', '{}', 'done', now() - interval '6 days')"
    )
    done = run("reap", "--json")
    assert document(done) == {"reclaimed": 2, "failed": 1, "removed": 1}
    assert done.stderr == ""
    document(here("reap", "--keep-done=0.5", "--archive", "--json"))
    archived = conn.execute("SELECT task FROM pgq_core.jobs_archive").fetchall()
    assert archived == [("e",)]


def test_reap_of_one_queue_leaves_the_others_leases_alone(
    here: Run, conn: psycopg.Connection
) -> None:
    conn.execute(
        "INSERT INTO pgq_core.jobs (queue, task, payload, status, attempts, locked_until)"
        " SELECT q, 'a', '{}', 'running', 1, now() - interval '1 s'"
        " FROM unnest(ARRAY['one', 'other']) q"
    )
    assert document(here("reap", "--queue=one", "--json"))["reclaimed"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_worker_after_its_job_and_hands_back_the_rest(
    here: Run, dsn: str, folder: Path, conn: psycopg.Connection, number: signal.Signals
) -> None:
    worker = start_slow_worker(here, dsn, folder)
    worker.send_signal(number)
    assert worker.stderr is not None
    assert "finishing the job" in worker.stderr.readline()
    (folder / "go").touch()
    out, err = worker.communicate(timeout=20)
    assert (worker.returncode, err) == (0, "")
    report = json.loads(out)
    assert (report["done"], report["released"]) == (1, 2)
    assert statuses(conn) == [("done", 1, 0), ("queued", 1, 1), ("queued", 1, 1)]


def test_a_task_may_have_all_the_time_in_the_world(here: Run, folder: Path) -> None:
    """A worker without a deadline starts whatever is due."""
    (folder / "shop.py").write_text(
        "from datetime import timedelta\nfrom pgq_core import Tasks\ntasks = Tasks()\n"
        "tasks.handler('long', timeout=timedelta(days=3650))(lambda job: None)\n"
    )
    for _ in range(2):
        document(here("enqueue", "long", "--json"))
    done = document(here("worker", "--once", "--tasks=shop:tasks", "--json"))
    assert (done["claimed"], done["done"]) == (2, 2)


def test_a_child_of_a_handler_ends_when_it_is_told_to(run: Run, here: Run, folder: Path) -> None:
    (folder / "shop.py").write_text(
        "import multiprocessing, time\nfrom pgq_core import Tasks\ntasks = Tasks()\n"
        "def stay(ready):\n"
        "    ready.set()\n"
        "    time.sleep(60)\n"
        "@tasks.handler('fork')\n"
        "def fork(job):\n"
        "    context = multiprocessing.get_context('fork')\n"
        "    ready = context.Event()\n"
        "    child = context.Process(target=stay, args=(ready,))\n"
        "    child.start()\n"
        "    ready.wait()\n"
        "    child.terminate()\n"
        "    child.join()\n"
    )
    document(here("enqueue", "fork", "--json"))
    done = run("worker", "--once", "--tasks=shop:tasks", "--json")
    assert document(done)["done"] == 1
    assert done.stderr == ""


def test_a_second_signal_interrupts_the_job_and_leaves_nothing_running(
    here: Run, dsn: str, folder: Path, conn: psycopg.Connection
) -> None:
    worker = start_slow_worker(here, dsn, folder)
    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    assert "finishing the job" in worker.stderr.readline()
    worker.send_signal(signal.SIGINT)
    out, err = worker.communicate(timeout=20)
    assert (worker.returncode, out) == (130, "")
    assert re.fullmatch(r"\npgq-core: interrupted[^\n]+\n", err)  # after the ^C of a terminal
    assert statuses(conn) == [("queued", 1, 0), ("queued", 1, 1), ("queued", 1, 1)]


def test_a_worker_without_deadline_keeps_its_leases_short(
    here: Run, dsn: str, folder: Path, conn: psycopg.Connection
) -> None:
    worker = start_slow_worker(here, dsn, folder)
    row = conn.execute("SELECT max(locked_until) - now() < '6 min' FROM pgq_core.jobs").fetchone()
    (folder / "go").touch()
    worker.communicate(timeout=20)
    assert row == (True,)


def test_a_table_that_does_not_fit_is_printed_line_by_line(here: Run, dsn: str) -> None:
    document(here("enqueue", "greet", "--queue=the_nightly_reports", "--json"))
    narrow = terminal(40, dsn, "status")
    lines = narrow.splitlines()
    assert max(map(len, lines)) <= 40
    assert ["queue", "the_nightly_reports"] in [line.split() for line in lines]
    assert ["ready", "1"] in [line.split() for line in lines]
    head, row = terminal(120, dsn, "status").splitlines()
    assert "the_nightly_reports" in row
    assert "oldest seconds" in head


@pytest.mark.parametrize("columns", range(80, 130, 5))
def test_a_table_that_fits_cuts_nothing_and_breaks_sentences_only(here: Run, columns: int) -> None:
    document(here("cron", "add", "the nightly one", "30 2 * * 1-5", "send_report", "--json"))
    shown = here("cron", "list", COLUMNS=str(columns)).stdout
    assert "…" not in shown
    assert re.search(r"\b30 2 \* \* 1-5 .*UTC", shown.replace("\n", " "))
    assert len(shown.splitlines()) in (2, 9)
    assert max(map(len, shown.splitlines())) <= columns


def test_a_long_word_beside_another_sentence_is_folded_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    row = {"seen": "one two three four five six seven eight", "remedy": "z" * 30}
    show({"findings": [row]}, as_json=False)
    shown = capsys.readouterr().out
    assert (shown.count("z"), "…" in shown) == (30, False)


def test_a_pipe_gets_no_colours_and_one_line_for_each_queue(
    run: Run, conn: psycopg.Connection
) -> None:
    name = "long-" * 39
    for queue in ("[red]x[/]", "a\x1b[31mb\n:heart:", name):
        conn.execute("INSERT INTO pgq_core.queues (name) VALUES (%s)", [queue])
    shown = run("status").stdout
    assert "\x1b" not in shown
    assert sum(name in line for line in shown.splitlines()) == 1
    assert "[red]x[/]" in shown
    assert r"a\x1b[31mb\n:heart:" in shown
    assert len(shown.splitlines()) == 4


def test_a_reader_that_has_enough_is_no_error(here: Run, dsn: str, folder: Path) -> None:
    document(here("enqueue", "greet", "--json"))
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "status"],
        cwd=folder,
        env=environment(dsn),
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert done.stderr == b""


def test_a_full_disk_is_one_line_and_exit_1(dsn: str, folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "status"],
            cwd=folder,
            env=environment(dsn),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert re.fullmatch(r"pgq-core: .*No space left[^\n]*\n", done.stderr)
