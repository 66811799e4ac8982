"""A handler's timeout: a signal in the main thread, nothing in another."""

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from pgq_core import Context, DrainReport, Job, Tasks
from pgq_core.errors import JobTimeout
from tests.worker.fakes import Drain, Look, Put, until

SHORT = timedelta(seconds=0.2)


def test_a_handler_over_its_timeout_is_interrupted_and_tried_again(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    tasks.handler("slow", timeout=SHORT)(lambda _job: time.sleep(10))
    slow, other = put("slow"), put()
    started = time.monotonic()
    assert drain() == DrainReport(claimed=2, done=1, retried=1)
    assert time.monotonic() - started < 3
    assert look(slow).last_error == ("JobTimeout: the handler ran longer than its timeout of 0.2 s")
    assert look(other).status == "done"


def test_a_handler_that_swallows_its_timeout_gets_the_next_one_a_second_later(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    struck: list[float] = []

    @tasks.handler("stubborn", timeout=SHORT)
    def stubborn(_job: Job) -> None:
        while len(struck) < 2:
            try:
                time.sleep(10)
            except JobTimeout:
                struck.append(time.monotonic())
        time.sleep(10)

    put("stubborn")
    assert drain() == DrainReport(claimed=1, retried=1)
    assert 0.7 < struck[1] - struck[0] < 1.5


def test_a_handler_that_ends_well_in_spite_of_its_timeout_is_done(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    @tasks.handler("tidy", timeout=SHORT)
    def tidy(_job: Job) -> None:
        try:
            time.sleep(10)
        except JobTimeout:
            return

    put("tidy")
    assert drain() == DrainReport(claimed=1, done=1)


def test_in_another_thread_no_timeout_interrupts(tasks: Tasks, put: Put, drain: Drain) -> None:
    reports: list[DrainReport] = []
    tasks.handler("slow", timeout=timedelta(seconds=0.05))(lambda _job: time.sleep(0.3))
    put("slow")
    thread = threading.Thread(target=lambda: reports.append(drain()))
    thread.start()
    thread.join()
    assert reports == [DrainReport(claimed=1, done=1)]


def test_the_timeout_of_one_job_does_not_strike_the_next(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    tasks.handler("quick", timeout=SHORT)(lambda _job: None)
    tasks.handler("long")(lambda _job: time.sleep(0.4))
    put("quick")
    put("long")
    assert drain() == DrainReport(claimed=2, done=2)


def test_the_processs_own_use_of_the_alarm_signal_is_put_back(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    def own(*_: object) -> None:
        raise AssertionError("not the process's alarm")

    tasks.handler("slow", timeout=SHORT)(lambda _job: time.sleep(10))
    put("slow")
    before = signal.signal(signal.SIGALRM, own)
    try:
        drain()
        assert signal.getsignal(signal.SIGALRM) is own
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_strike_that_comes_when_the_handler_has_ended_changes_nothing(
    put: Put, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    setitimer = signal.setitimer

    def late(which: int, seconds: float, again: float = 0) -> object:
        if not seconds:
            signal.raise_signal(signal.SIGALRM)
        return setitimer(which, seconds, again)

    monkeypatch.setattr("pgq_core.run.signal.setitimer", late)
    put()
    assert drain() == DrainReport(claimed=1, done=1)


def test_a_handler_can_ask_how_long_it_may_still_run(tasks: Tasks, put: Put, drain: Drain) -> None:
    left: list[float] = []

    @tasks.handler("curious", timeout=timedelta(seconds=5))
    def curious(_job: Job, ctx: Context) -> None:
        left.append(ctx.time_left().total_seconds())
        time.sleep(0.1)
        left.append(ctx.time_left().total_seconds())

    put("curious")
    drain()
    assert 4.5 < left[0] <= 5
    assert 0.1 <= left[0] - left[1] < 1


def test_a_timeout_in_the_middle_of_a_statement_leaves_a_fit_connection(
    tasks: Tasks,
    put: Put,
    drain: Drain,
    look: Look,
    connect: Callable[..., psycopg.Connection],
) -> None:
    other = connect(autocommit=False)

    @tasks.handler("extends", timeout=timedelta(seconds=0.5))
    def extends(job: Job, ctx: Context) -> None:
        other.execute("SELECT FROM pgq_core.jobs WHERE id = %s FOR UPDATE", [job.id])
        try:
            ctx.extend(timedelta(minutes=1))
        finally:
            other.rollback()

    job, next_one = put("extends"), put()
    assert drain() == DrainReport(claimed=2, done=1, retried=1)
    assert str(look(job).last_error).startswith("JobTimeout")
    assert look(next_one).status == "done"
    assert len(drain.worker.opened) == 2


def test_a_timeout_struck_while_another_finished_job_is_written_loses_neither(
    tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    first = put()
    tasks.handler("slow", timeout=timedelta(seconds=0.1))(lambda _job: until(lambda: False))
    slow = put("slow")
    assert drain() == DrainReport(claimed=2, done=1, retried=1)
    assert (look(first).status, look(slow).status) == ("done", "queued")
