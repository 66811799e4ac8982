"""Jobs looked at and steered from the command line; and what has ended, removed."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from textwrap import shorten
from typing import Any

import psycopg
import pytest

from tests.cli.shell import COMMAND, Run, document, environment, terminal, the_error
from tests.conftest import Connect
from tests.sql.rows import Rows
from tests.worker.fakes import until

LOCK = 42


@pytest.fixture
def rows(conn: psycopg.Connection) -> Rows:
    return Rows(conn)


def listed(here: Run, *options: str) -> list[int]:
    return [row["id"] for row in document(here("jobs", "list", *options, "--json"))["jobs"]]


# --- list ---


def test_jobs_are_listed_newest_first_and_each_page_tells_of_the_next(
    here: Run, rows: Rows
) -> None:
    ids = rows.add(5)[::-1]
    first = document(here("jobs", "list", "--limit=2", "--json"))
    assert [row["id"] for row in first["jobs"]] == ids[:2]
    assert first["next"] == f"--before {ids[1]}"
    second = document(here("jobs", "list", "--limit=2", *first["next"].split(), "--json"))
    third = document(here("jobs", "list", "--limit=2", *second["next"].split(), "--json"))
    assert [row["id"] for row in third["jobs"]] == ids[4:]
    assert "next" not in third
    assert here("jobs", "list", "--limit=2").stdout.splitlines()[-1].split() == [
        *("next", "--before", str(ids[1]))
    ]


def test_no_jobs_are_none(here: Run) -> None:
    assert here("jobs", "list").stdout.split() == ["jobs", "none"]


@pytest.mark.parametrize(
    ("option", "columns"),
    [
        ("--queue=q", {"queue": "q"}),
        ("--task=other", {"task": "other"}),
        ("--status=done", {"status": "done"}),
        ("--unique-key=k", {"unique_key": "k"}),
        ("--worker=w", {"status": "running", "locked_by": "w", "locked_until": "2030-01-01Z"}),
    ],
)
def test_each_filter_keeps_what_fits(
    here: Run, rows: Rows, option: str, columns: dict[str, Any]
) -> None:
    rows.add(2)
    rows.add(status="running", locked_by="v", locked_until="2030-01-01Z")
    [wanted] = rows.add(1, **columns)
    rows.add(2)
    assert listed(here, option) == [wanted]


def test_a_full_page_of_a_workers_jobs_is_found_among_those_of_others(
    here: Run, rows: Rows
) -> None:
    ids = rows.add(5, status="running", locked_until="2030-01-01Z", locked_by="w")
    for other in ids[1::2]:
        rows.change(other, locked_by="v")
    assert listed(here, "--worker=w", "--limit=2") == [ids[4], ids[2]]
    rest = listed(here, "--worker=w", "--limit=2", f"--before={ids[2]}")
    assert rest == [ids[0]]


def test_a_cancelled_job_is_found_by_the_worker_that_may_still_run_it(
    here: Run, rows: Rows
) -> None:
    ids = rows.add(status="cancelled", locked_by="w")
    assert listed(here, "--worker=w") == []
    assert listed(here, "--worker=w", "--status=cancelled") == ids


def test_a_list_has_room_for_one_line_of_an_error(here: Run, rows: Rows) -> None:
    rows.add(status="failed", last_error="ValueError: a\n" + "b " * 100)
    [row] = document(here("jobs", "list", "--json"))["jobs"]
    assert row["error"].startswith("ValueError: a b b")
    assert len(row["error"]) <= 60
    assert len(here("jobs", "list").stdout.splitlines()) == 2


@pytest.mark.parametrize("columns", [80, 90, 100, 120, 140])
def test_a_list_of_jobs_is_a_table_of_which_only_the_error_is_broken(
    here: Run, rows: Rows, columns: int
) -> None:
    error = "LookupError: there is no such order any more and never was one"
    rows.add(2, queue="default", task="send_invoice", status="failed", last_error=error)
    head, *lines = here("jobs", "list", COLUMNS=str(columns)).stdout.splitlines()
    assert "error" in head
    one = r" default +send_invoice +0 +20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ "
    assert len(re.findall(one, "".join(lines))) == 2
    words = " ".join(lines).split()
    assert [words.count(word) for word in shorten(error, 60).split()[:-1]] == [2] * 10


# --- show ---


def test_a_job_is_shown_whole_but_for_what_may_be_secret(here: Run, rows: Rows) -> None:
    [job_id] = rows.add(
        payload='{"card": 1}', headers='{"a": 2}', status="failed", attempts=3, released=1,
        last_error="E: a\n  b", locked_by="w", unique_key="k", finished_at="2026-01-02T03:04:05Z",
    )  # fmt: skip
    shown = document(here("jobs", "show", str(job_id), "--json"))
    stored = rows.read(job_id)
    assert [*shown][:6] == ["id", "queue", "task", "status", "attempt", "max_attempts"]
    facts = [shown[name] for name in ("id", "status", "attempts", "attempt")]
    assert facts == [job_id, "failed", 3, 2]
    assert shown["finished_at"] == "2026-01-02T03:04:05+00:00"
    assert shown["last_error"] == "E: a\n  b"
    hidden = {"payload", "headers", "settled", "settled_as"}
    assert shown.keys() == (stored.keys() | {"attempt"}) - hidden
    whole = document(here("jobs", "show", str(job_id), "--payload", "--json"))
    assert (whole["payload"], whole["headers"]) == ('{"card": 1}', '{"a": 2}')
    assert here("jobs", "show", str(job_id)).stdout.endswith(
        "last error      E: a\n                  b\n"
    )


def test_a_payload_that_python_cannot_read_is_shown_as_it_is_stored(here: Run, rows: Rows) -> None:
    number = "1" + "0" * 5000
    [job_id] = rows.add(payload=f'{{"n": {number}}}')
    assert number in here("jobs", "show", str(job_id), "--payload").stdout
    shown = document(here("jobs", "show", str(job_id), "--payload", "--json"))
    assert shown["payload"] == f'{{"n": {number}}}'


def test_a_job_that_is_not_there_is_one_line_and_exit_1(here: Run) -> None:
    assert "there is no job 7" in the_error(here("jobs", "show", "7"), 1)


@pytest.mark.parametrize("wrong", ["0", "-1", str(2**63), "abc", "1.5"])
@pytest.mark.parametrize("command", ["show", "retry", "cancel"])
def test_what_is_no_id_is_wrong_usage(here: Run, command: str, wrong: str) -> None:
    assert "'" in the_error(here("jobs", command, "--", wrong), 2)


# --- retry and cancel ---


def test_a_retry_says_what_became_of_each_job(here: Run, rows: Rows) -> None:
    [failed] = rows.add(status="failed", queue="q")
    [done] = rows.add(status="done")
    [taken] = rows.add(status="failed", unique_key="k")
    rows.add(unique_key="k")
    ids = [str(one) for one in (failed, done, taken, 999, failed)]
    ended = here("jobs", "retry", *ids, "--json")
    assert ended.returncode == 1
    answer = json.loads(ended.stdout)
    assert [(row["id"], row["status"], row["why"]) for row in answer["jobs"]] == [
        (failed, "queued", ""),
        (done, "done", "it is done"),
        (taken, "failed", "its unique key is in use again"),
        (999, None, "there is no such job"),
    ]
    assert (answer["retried"], answer["kick"]) == (1, "none")


def test_a_retry_kicks_each_queue_that_has_a_job_again_and_no_other(
    here: Run, rows: Rows, aws: str, conn: psycopg.Connection
) -> None:
    ids = rows.add(2, status="failed", queue="a") + rows.add(status="failed", queue="b")
    ids += rows.add(status="done", queue="c")
    ended = here(*("jobs", "retry", *map(str, ids), "--kick=shop", "--json"), AWS_ENDPOINT_URL=aws)
    assert json.loads(ended.stdout)["kick"] == "sent"
    names = conn.execute("SELECT name FROM pgq_core.queues ORDER BY name").fetchall()
    assert names == [("a",), ("b",)]


def test_the_worst_of_several_kicks_is_told(
    here: Run, rows: Rows, conn: psycopg.Connection
) -> None:
    conn.execute("INSERT INTO pgq_core.queues (name, kick_requested_at) VALUES ('a', now())")
    ids = rows.add(status="failed", queue="a") + rows.add(status="failed", queue="b")
    ended = here("jobs", "retry", *map(str, ids), "--kick=shop", "--json")
    assert document(ended)["kick"] == "failed"


def test_all_failed_jobs_that_match_are_tried_again_the_oldest_first(here: Run, rows: Rows) -> None:
    ids = rows.add(3, status="failed", queue="q", task="a")
    rows.add(status="cancelled", queue="q", task="a")
    rows.add(status="failed", queue="q", task="b")
    rows.add(status="failed", task="a")
    ended = here("jobs", "retry", "--queue=q", "--task=a", "--yes", "--json")
    assert document(ended) == {"could_not": [], "retried": 3, "kick": "none"}
    assert rows.statuses() == ["queued"] * 3 + ["cancelled", "failed", "failed"]
    due = [rows.read(one)["run_at"] for one in ids]
    assert due == sorted(due)


def test_of_all_that_match_those_are_shown_that_could_not_be_tried_again(
    here: Run, rows: Rows
) -> None:
    [older] = rows.add(status="cancelled", unique_key="k")
    [newer] = rows.add(status="cancelled", unique_key="k")
    ended = here("jobs", "retry", "--status=cancelled", "--yes", "--json")
    assert ended.returncode == 1
    [row] = json.loads(ended.stdout)["could_not"]
    assert (row["id"], row["why"]) == (newer, "its unique key is in use again")
    assert rows.read(older)["status"] == "queued"


def test_more_jobs_than_a_page_are_tried_again(here: Run, rows: Rows) -> None:
    rows.add(450, status="failed")
    assert document(here("jobs", "retry", "--status=failed", "--yes", "--json"))["retried"] == 450


def test_where_nothing_matches_nobody_is_asked(here: Run) -> None:
    assert document(here("jobs", "retry", "--task=a", "--json"))["retried"] == 0


@pytest.mark.parametrize("arguments", [[], ["1", "--queue=q"], ["--yes"]])
def test_a_retry_names_jobs_in_one_way(here: Run, arguments: list[str]) -> None:
    assert "by their ids, or by --queue" in the_error(here("jobs", "retry", *arguments), 2)


def test_jobs_are_cancelled_and_what_has_ended_is_told(here: Run, rows: Rows) -> None:
    [queued] = rows.add()
    [failed] = rows.add(status="failed", unique_key="k")
    assert document(here("jobs", "cancel", str(queued), "--json"))["jobs"][0]["why"] == ""
    ended = here("jobs", "cancel", str(queued), str(failed))
    assert ended.returncode == 1
    assert "it is cancelled" in ended.stdout
    assert "it is failed" in ended.stdout
    assert rows.statuses() == ["cancelled", "failed"]


# --- what is asked before ---


@pytest.mark.parametrize("command", [["cleanup"], ["jobs", "retry", "--status=failed"]])
def test_without_a_terminal_nothing_much_is_changed_unless_yes_is_said(
    run: Run, rows: Rows, command: list[str]
) -> None:
    rows.add(status="failed", finished_at="2020-01-01Z")
    assert "give --yes" in the_error(run(*command, stdin=b"y\n"), 2)
    assert rows.statuses() == ["failed"]


@pytest.mark.parametrize(
    ("typed", "code", "left"), [(b"y\n", 0, ["queued"]), (b"n\n", 1, ["failed"])]
)
def test_on_a_terminal_a_person_is_asked(
    dsn: str, rows: Rows, typed: bytes, code: int, left: list[str]
) -> None:
    rows.add(status="failed")
    arguments = ["jobs", "retry", "--status=failed"]
    shown = terminal(80, dsn, *arguments, typed=typed, code=code)
    assert "Try 1 jobs again? [y/N]" in shown
    assert ("nothing was changed" in shown) == (code == 1)
    assert rows.statuses() == left


def test_a_question_that_nobody_answers_changes_nothing(dsn: str, rows: Rows) -> None:
    rows.add(status="failed", finished_at="2020-01-01Z")
    shown = terminal(80, dsn, "cleanup", typed=b"\x04", code=130)
    assert "Remove jobs done 7 days ago or more, failed or cancelled 30?" in shown
    assert "pgq-core: interrupted" in shown
    assert rows.statuses() == ["failed"]


# --- cleanup ---


def test_a_cleanup_removes_what_was_kept_long_enough_and_reclaims_nothing(
    here: Run, rows: Rows
) -> None:
    rows.add(status="done", finished_at="2020-01-01Z")
    rows.add(status="cancelled", finished_at="2020-01-01Z")
    rows.add(status="running", locked_until="2020-01-01Z")
    rows.add(status="failed")
    assert document(here("cleanup", "--yes", "--json")) == {"removed": 2}
    assert rows.statuses() == ["running", "failed"]
    assert document(here("cleanup", "--keep-failed=0", "--archive", "--yes", "--json")) == {
        "removed": 1
    }
    assert [row["status"] for row in rows.all("jobs_archive")] == ["failed"]


@pytest.fixture
def held(conn: psycopg.Connection, connect: Connect) -> Callable[[], None]:
    """Let whatever changes jobs wait until the function given is called."""
    holder = connect()
    holder.execute("SELECT pg_advisory_lock(%s)", [LOCK])
    conn.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" PERFORM pg_advisory_xact_lock({LOCK}); RETURN NULL; END $$;"
        "CREATE TRIGGER wait BEFORE UPDATE OR DELETE ON pgq_core.jobs EXECUTE FUNCTION wait()"
    )
    return holder.close


def interrupt(
    dsn: str, conn: psycopg.Connection, held: Callable[[], None], *arguments: str
) -> tuple[dict[str, Any], str]:
    """Send SIGINT to a command that waits in its first statement; return its answer."""
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--json"],
        env=environment(dsn),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    until(lambda: conn.execute(waiting).fetchone() == (1,), 20)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    line = process.stderr.readline()
    held()
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    answer = json.loads(out)
    assert isinstance(answer, dict)
    return answer, line


def test_an_interrupted_cleanup_ends_after_its_batch_and_says_how_many_went(
    dsn: str, conn: psycopg.Connection, rows: Rows, held: Callable[[], None]
) -> None:
    rows.add(10_001, status="done", finished_at="2020-01-01Z")
    answer, line = interrupt(dsn, conn, held, "cleanup", "--yes")
    assert line == "pgq-core: finishing the batch; a second signal interrupts it\n"
    assert answer == {"removed": 10_000}
    assert conn.execute("SELECT count(*) FROM pgq_core.jobs").fetchone() == (1,)


def test_an_interrupted_retry_says_which_jobs_it_got_to(
    dsn: str, conn: psycopg.Connection, rows: Rows, held: Callable[[], None]
) -> None:
    ids = rows.add(3, status="failed")
    answer, line = interrupt(dsn, conn, held, "jobs", "retry", *map(str, ids))
    assert line == "pgq-core: finishing the job; a second signal interrupts it\n"
    assert [row["id"] for row in answer["jobs"]] == ids[:1]
    assert rows.statuses() == ["queued", "failed", "failed"]


# --- colours ---


def test_a_status_has_a_colour_on_a_terminal_and_none_in_a_pipe_or_against_the_users_wish(
    run: Run, dsn: str, rows: Rows
) -> None:
    [job_id] = rows.add(status="failed", task="failed")
    show = ["jobs", "show", str(job_id)]
    assert "\x1b[31mfailed\x1b[0m" in terminal(100, dsn, *show)
    assert terminal(100, dsn, *show).count("\x1b[31m") == 1, "a task is no status"
    assert "\x1b" not in run(*show).stdout
    assert "\x1b[31m" not in run(*show, NO_COLOR="1").stdout


def test_progress_is_for_a_terminal_only(run: Run, dsn: str) -> None:
    assert run("cleanup", "--yes").stderr == ""
    assert "batch 1" in terminal(80, dsn, "cleanup", "--yes")
