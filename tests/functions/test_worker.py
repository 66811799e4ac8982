"""The worker function, called as Lambda calls it, against a real database."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pytest_mock import MockerFixture

from functions import _runtime as runtime
from functions import reaper, worker
from pgq_core import DrainReport, Job, Snooze, Tasks, enqueue
from pgq_core.errors import SchemaMismatch
from tests.functions.fakes import SESSIONS, FakeContext, Kicks, Log, one, sessions


@pytest.mark.parametrize(
    "event",
    [
        None,
        "default",
        [],
        {},
        {"key1": "value1"},
        {"Records": [{"eventSource": "aws:sqs", "body": "{}"}]},
        {"queue": None},
        {"queue": ""},
        {"queue": "q" * 201},
        {"queue": "nul\x00"},
        {"queue": "default", "hop": "1"},
        {"queue": "default", "hop": -1},
        {"queue": "default", "hop": True},
        {"queue": "default", "alarm": "soon"},
        {"queue": "default", "alarm": 12},
        {"queue": "default", "alarm": "2026-12-01T09:31:00"},
    ],
)
def test_an_event_that_is_none_of_ours_is_logged_and_ignored(
    event: object, context: FakeContext, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(runtime, "connect")  # it must not get as far
    assert worker.handler(event, context) == {}
    [line] = log.of_level("WARNING")
    assert line["message"] == "event ignored"
    assert line["reason"]


def test_a_kick_drains_its_queue_and_no_other(
    conn: psycopg.Connection, context: FakeContext, tasks: Tasks
) -> None:
    ran: list[object] = []
    tasks.handler("note")(lambda job: ran.append(job.payload["n"]))
    for n in range(25):
        enqueue(conn, "note", {"n": n})
    enqueue(conn, "note", {"n": "other"}, queue="other")
    report = worker.handler({"queue": "default"}, context)
    assert report["default"]["done"] == 25
    assert sorted(ran, key=str) == sorted(range(25), key=str)
    assert one(conn, "select count(*) from pgq_core.jobs where status = 'queued'") == 1


def test_lam_02_a_jobs_failure_is_not_the_invocations(
    conn: psycopg.Connection, context: FakeContext, tasks: Tasks
) -> None:
    @tasks.handler("third")
    def third(job: Job) -> None:
        if job.payload["n"] == 1:
            raise SystemExit("no")

    for n in range(3):
        enqueue(conn, "third", {"n": n})
    report = worker.handler({"queue": "default"}, context)
    assert (report["default"]["done"], report["default"]["retried"]) == (2, 1)
    assert one(conn, "select last_error from pgq_core.jobs where status = 'queued'")


def test_lam_02_an_outage_of_the_database_is_the_invocations_failure(
    context: FakeContext, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:pa55@127.0.0.1:1/d")
    with pytest.raises(psycopg.OperationalError):
        worker.handler({"queue": "default"}, context)
    [line] = log.of_level("ERROR")
    assert "127.0.0.1" in line["message"]
    assert "\n" not in line["message"]
    assert "pa55" not in log.stream.getvalue()


def test_a_database_without_the_schema_is_told_from_an_empty_queue(
    empty_dsn: str, context: FakeContext, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_dsn)
    for event in ({"queue": "default"}, {"queue": "*"}):
        with pytest.raises(SchemaMismatch, match="migrate"):
            worker.handler(event, context)
    assert len(log.of_level("ERROR")) == 2


def test_lam_06_no_connection_outlives_an_invocation(
    conn: psycopg.Connection, context: FakeContext, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    tasks.handler("look")(lambda _: seen.append(one(conn, SESSIONS)))
    enqueue(conn, "look", {})
    worker.handler({"queue": "default"}, context)
    assert seen == [1]  # the probe sees a session while there is one
    assert sessions(conn) == 0
    worker.handler({"queue": "*"}, context)
    assert sessions(conn) == 0
    reaper.handler({}, context)
    assert sessions(conn) == 0

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr("pgq_core.alarm.outlook", broken)
    monkeypatch.setattr("pgq_core.queues.with_work", broken)
    monkeypatch.setattr("pgq_core.queues.stats", broken)
    for handler, event in (
        (worker.handler, {"queue": "default"}),
        (worker.handler, {"queue": "*"}),
        (reaper.handler, {}),
    ):
        with pytest.raises(RuntimeError, match="in the middle"):
            handler(event, context)
        assert sessions(conn) == 0


def test_lam_12_metrics_of_warm_invocations_do_not_leak_into_each_other(
    conn: psycopg.Connection,
    tasks: Tasks,
    log: Log,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime.metrics.provider, "service", "my-stack")  # as from its variable

    @tasks.handler("work")
    def do(job: Job) -> object:
        return Snooze(timedelta(minutes=9)) if job.payload["later"] else None

    outputs = []
    for later in (False, None, True):
        if later is not None:
            enqueue(conn, "work", {"later": later}, queue="one of the user's")
        worker.handler({"queue": "one of the user's"}, FakeContext(request_id=f"request {later}"))
        outputs.append(capsys.readouterr().out)
    first, nothing, last = outputs
    assert nothing == ""
    figures = [json.loads(output) for output in (first, last)]
    for one_line in figures:
        [directive] = one_line["_aws"]["CloudWatchMetrics"]
        assert directive["Namespace"] == "pgq_core"
        assert directive["Dimensions"] == [["service"]]
    assert {name: value for name, value in figures[0].items() if name[0] != "_"} == {
        "service": "my-stack",
        "claimed": [1],
        "done": [1],
    }
    assert "done" not in figures[1]
    assert figures[1]["snoozed"] == [1]
    assert "one of the user's" not in first + last
    drained = [line for line in log.lines if line["name"].startswith("pgq_core")]
    assert [line["function_request_id"] for line in drained] == [
        "request False",
        "request None",
        "request True",
    ]


def figures(printed: str) -> dict[str, Any]:
    """The numbers of the one line of metrics."""
    return {name: value for name, value in json.loads(printed).items() if name != "_aws"}


def test_lam_12_a_run_in_which_all_fail_sends_that(
    conn: psycopg.Connection,
    tasks: Tasks,
    context: FakeContext,
    capsys: pytest.CaptureFixture[str],
    log: Log,
) -> None:
    tasks.handler("bad")(lambda job: job.payload["no such key"])
    enqueue(conn, "bad", {})
    enqueue(conn, "bad", {}, max_attempts=1)
    worker.handler({"queue": "default"}, context)
    assert figures(capsys.readouterr().out) == {"claimed": [2], "retried": [1], "failed": [1]}
    assert len([line for line in log.lines if line["message"] == "handler raised"]) == 2


def test_lam_12_an_outage_sends_what_was_done_before_it(
    conn: psycopg.Connection,
    tasks: Tasks,
    context: FakeContext,
    log: Log,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGQ_BATCH_SIZE", "1")
    monkeypatch.setattr("pgq_core.settle.PATIENCE", 0.1)
    end = "select pg_terminate_backend(pid, 5000)" + SESSIONS.removeprefix("select count(*)")
    with monkeypatch.context() as patch:

        @tasks.handler("last")
        def last(_job: Job) -> None:
            patch.setenv("DATABASE_URL", "postgresql://u@127.0.0.1:1/d")
            conn.execute(end)

        tasks.handler("ok")(lambda _: None)
        for task in ("ok", "ok", "ok", "last"):
            enqueue(conn, task, {})
        with pytest.raises(psycopg.OperationalError):
            worker.handler({"queue": "default"}, context)
    assert figures(capsys.readouterr().out) == {"claimed": [4], "done": [3]}
    assert [line["done"] for line in log.lines if line["message"] == "drain ended"] == [3]
    worker.handler({"queue": "default"}, context)
    assert capsys.readouterr().out == ""


def test_lam_12_what_a_handler_adds_to_the_log_ends_with_its_invocation(
    conn: psycopg.Connection, context: FakeContext, tasks: Tasks, log: Log
) -> None:
    tasks.handler("add")(lambda _: runtime.logger.append_keys(added="by the first"))
    enqueue(conn, "add", {})
    worker.handler({"queue": "default"}, context)
    assert log.lines[-1]["added"] == "by the first"
    worker.handler({"queue": "default"}, context)
    assert "added" not in log.lines[-1]


def test_the_logs_of_the_library_and_of_the_handlers_are_json(
    conn: psycopg.Connection, context: FakeContext, tasks: Tasks, log: Log
) -> None:
    import logging

    tasks.handler("talk")(lambda job: logging.getLogger("app_jobs").info("job %s", job.id))
    job = enqueue(conn, "talk", {})
    worker.handler({"queue": "default"}, context)
    assert f"job {job.id}" in [line["message"] for line in log.of_level("INFO")]


class Unspeakable(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "said"), [(OSError("file\udcff ö"), "file\udcff ö"), (Unspeakable(), "Unspeakable")]
)
def test_the_log_has_a_line_for_whatever_a_handler_raises(
    conn: psycopg.Connection,
    context: FakeContext,
    tasks: Tasks,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    said: str,
) -> None:
    def bad(_job: Job) -> None:
        raise error

    tasks.handler("bad")(bad)
    enqueue(conn, "bad", {})
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "utf-8", write_through=True)  # as Lambda's
    monkeypatch.setattr(runtime.logger.registered_handler, "stream", stream)
    assert worker.handler({"queue": "default"}, context)["default"]["retried"] == 1
    lines = map(json.loads, written.getvalue().decode().split("\n")[:-1])
    [line] = [line for line in lines if line["message"] == "handler raised"]
    assert said in line["exception"]


def test_the_sweep_drains_every_queue_with_due_jobs_or_expired_leases(
    conn: psycopg.Connection, context: FakeContext, tasks: Tasks
) -> None:
    tasks.handler("ok")(lambda _: None)
    for queue in ("a", "b", "paused", "later", "crashed"):
        enqueue(conn, "ok", {}, queue=queue)
    conn.execute("insert into pgq_core.queues (name, paused) values ('paused', true)")
    conn.execute("update pgq_core.jobs set run_at = now() + interval '1 h' where queue = 'later'")
    conn.execute(
        """update pgq_core.jobs set status = 'running', attempts = 1,
           locked_until = now() - interval '1 s', locked_by = 'dead' where queue = 'crashed'"""
    )
    report = worker.handler({"queue": "*"}, context)
    assert report.keys() == {"a", "b", "crashed"}
    assert report["a"]["done"] == report["b"]["done"] == report["crashed"]["reclaimed"] == 1


def test_a_sweep_out_of_time_hands_over_once_and_as_a_sweep(
    conn: psycopg.Connection, tasks: Tasks, kicks: Kicks
) -> None:
    tasks.handler("ok", timeout=timedelta(seconds=1))(lambda _: None)
    for queue in ("a", "b", "c"):
        enqueue(conn, "ok", {}, queue=queue)
    worker.handler({"queue": "*", "hop": 2}, FakeContext(seconds=3))
    assert kicks.sent == [("*", 3)]
    kicks.sent.clear()
    worker.handler({"queue": "*", "hop": 3}, FakeContext(seconds=3))
    assert kicks.sent == []  # nobody started anything, three times in a row


def test_a_sweep_that_got_on_hands_over_however_many_hops_led_to_it(
    conn: psycopg.Connection,
    tasks: Tasks,
    kicks: Kicks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.shuffle", lambda names: names.sort())
    context = FakeContext(seconds=20)
    tasks.handler("slow", timeout=timedelta(seconds=1))(
        lambda _: setattr(context, "ends", context.ends - 14)
    )
    for queue in ("a", "b"):
        enqueue(conn, "slow", {}, queue=queue)
    report = worker.handler({"queue": "*", "hop": 3}, context)
    assert (report["a"]["done"], report["b"]["claimed"] - report["b"]["released"]) == (1, 0)
    assert kicks.sent == [("*", 1)]


def test_only_the_last_queue_of_a_sweep_is_waited_for(
    conn: psycopg.Connection,
    context: FakeContext,
    monkeypatch: pytest.MonkeyPatch,
    mocker: MockerFixture,
) -> None:
    monkeypatch.setenv("PGQ_WAIT", "90")
    for queue in ("a", "b", "c"):
        enqueue(conn, "any", {}, queue=queue)
    drained = mocker.patch.object(worker, "work", autospec=True, return_value=DrainReport())
    worker.handler({"queue": "*"}, context)
    waits = [call.kwargs["wait"].total_seconds() for call in drained.call_args_list]
    assert waits == [0, 0, 90]
    worker.handler({"queue": "a"}, context)
    assert drained.call_args.kwargs["wait"] == timedelta(seconds=90)


def test_a_sweep_whose_hand_over_is_refused_goes_on_to_the_next_queue(
    conn: psycopg.Connection, tasks: Tasks, kicks: Kicks
) -> None:
    tasks.handler("long", timeout=timedelta(seconds=100))(lambda _: None)
    tasks.handler("short", timeout=timedelta(seconds=1))(lambda _: None)
    kicks.accept = False
    for number in range(4):
        enqueue(conn, "long", {}, queue=f"long {number}")
    enqueue(conn, "short", {}, queue="short")
    report = worker.handler({"queue": "*"}, FakeContext(seconds=60))
    assert len(report) == 5
    assert report["short"]["done"] == 1


def test_a_sweep_out_of_time_whose_hand_over_is_refused_ends(
    conn: psycopg.Connection, tasks: Tasks, kicks: Kicks
) -> None:
    """Each refusal may take 2 s, and Lambda kills what runs on."""
    tasks.handler("ok", timeout=timedelta(seconds=1))(lambda _: None)
    kicks.accept = False
    for queue in ("a", "b", "c"):
        enqueue(conn, "ok", {}, queue=queue)
    assert len(worker.handler({"queue": "*"}, FakeContext(seconds=4))) == 1
    assert kicks.sent == [("*", 1)]


def test_a_sweep_out_of_time_without_wake_ups_ends(conn: psycopg.Connection, tasks: Tasks) -> None:
    tasks.handler("ok", timeout=timedelta(seconds=1))(lambda _: None)
    for queue in ("a", "b", "c"):
        enqueue(conn, "ok", {}, queue=queue)
    assert len(worker.handler({"queue": "*"}, FakeContext(seconds=4))) == 1


def test_lam_04_a_backlog_is_handed_over_by_the_queues_name_and_with_its_hops(
    conn: psycopg.Connection, tasks: Tasks, kicks: Kicks
) -> None:
    context = FakeContext(seconds=20)
    tasks.handler("slow", timeout=timedelta(seconds=1))(
        lambda _: setattr(context, "ends", context.ends - 6)
    )
    for _ in range(5):
        enqueue(conn, "slow", {})
    report = worker.handler({"queue": "default", "hop": 40}, context)
    assert 0 < report["default"]["done"] < 5
    assert kicks.sent == [("default", 41)]
    assert one(conn, "select count(*) from pgq_core.jobs where status = 'running'") == 0


def test_an_alarm_spends_the_mark_it_was_set_for(
    conn: psycopg.Connection, context: FakeContext
) -> None:
    at = datetime.now(UTC) + timedelta(seconds=30)
    conn.execute("insert into pgq_core.queues (name, alarm_at) values ('default', %s)", [at])
    worker.handler({"queue": "default"}, context)
    assert one(conn, "select alarm_at from pgq_core.queues") == at
    worker.handler({"queue": "default", "alarm": at.isoformat()}, context)
    assert one(conn, "select alarm_at from pgq_core.queues") is None


@pytest.mark.usefixtures("log")
def test_lse_02_a_lost_lease_is_a_figure_of_the_metrics(
    conn: psycopg.Connection,
    context: FakeContext,
    tasks: Tasks,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cancel = "update pgq_core.jobs set status = 'cancelled'"
    tasks.handler("stolen")(lambda _: conn.execute(cancel))
    enqueue(conn, "stolen", {})
    worker.handler({"queue": "default"}, context)
    sent = json.loads(capsys.readouterr().out)
    assert (sent["claimed"], sent["lost"]) == ([1], [1])
    assert "done" not in sent


@pytest.mark.parametrize("worker_timeout", [20, 60])
def test_lse_05_a_task_too_long_for_any_invocation_fails_alone(
    conn: psycopg.Connection,
    worker_timeout: int,
    tasks: Tasks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGQ_WORKER_TIMEOUT", str(worker_timeout))
    context = FakeContext(seconds=worker_timeout)
    tasks.handler("hour", timeout=timedelta(hours=1))(lambda _: None)
    tasks.handler("ok", timeout=timedelta(seconds=10))(lambda _: None)
    enqueue(conn, "hour", {})
    enqueue(conn, "ok", {})
    report = worker.handler({"queue": "default"}, context)
    assert (report["default"]["done"], report["default"]["failed"]) == (1, 1)
    assert "3600 s" in one(conn, "select last_error from pgq_core.jobs where status = 'failed'")


def test_the_leases_carry_the_invocations_name(
    conn: psycopg.Connection, context: FakeContext, tasks: Tasks
) -> None:
    seen: list[object] = []
    tasks.handler("who")(lambda job: seen.append(job.locked_by))
    enqueue(conn, "who", {})
    worker.handler({"queue": "default"}, context)
    assert seen == ["request-1"]


def test_the_worker_goes_through_the_connections_of_its_own_name(
    conn: psycopg.Connection, context: FakeContext, tasks: Tasks, connect: Callable[..., Any]
) -> None:
    seen: list[str] = []
    look = "select application_name from pg_stat_activity where application_name like 'pgq/%'"
    tasks.handler("look")(lambda _: seen.extend(row[0] for row in connect().execute(look)))
    enqueue(conn, "look", {})
    worker.handler({"queue": "default"}, context)
    assert seen == ["pgq/worker"]
