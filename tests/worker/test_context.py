"""What a handler may ask of the queue: a transaction with its job, more time, whether to stop."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

from pgq_core import Context, DrainReport, Job, Retry, Snooze, Tasks, jobs
from pgq_core.errors import LeaseLost
from tests.worker.fakes import Drain, Look, Lossy, Put, Value

MINUTE = timedelta(minutes=1)
LEASE = "SELECT extract(epoch FROM locked_until - now())::float FROM pgq_core.jobs WHERE id = %s"

Count = Callable[[], int]


@pytest.fixture(autouse=True)
def ledger(conn: psycopg.Connection) -> None:
    """A table of the application's."""
    conn.execute("CREATE TABLE ledger (job_id bigint PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")


@pytest.fixture
def booked(value: Value) -> Count:
    return lambda: int(value("SELECT count(*) FROM ledger"))


def book(conn: psycopg.Connection, job: Job) -> None:
    conn.execute("INSERT INTO ledger VALUES (%s)", [job.id])


def take_away(conn: psycopg.Connection, job: Job) -> None:
    """Do what a reclaim does to a job that runs."""
    conn.execute(
        "UPDATE pgq_core.jobs SET status = 'queued', run_at = now() + interval '1 hour', "
        "locked_until = NULL WHERE id = %s",
        [job.id],
    )


def test_the_handlers_writes_and_the_completion_commit_together(
    tasks: Tasks, put: Put, drain: Drain, look: Look, booked: Count, value: Value
) -> None:
    seen: list[object] = []

    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        with ctx.transaction() as mine:
            book(mine, job)
            seen.append((booked(), look(stored).status))
        seen.append((booked(), look(stored).status))

    stored = put("a")
    assert drain() == DrainReport(claimed=1, done=1)
    assert seen == [(0, "running"), (1, "done")]
    assert value("SELECT jobs.xmin = ledger.xmin FROM pgq_core.jobs, ledger")


def test_an_error_in_the_transaction_rolls_both_back(
    tasks: Tasks, put: Put, drain: Drain, look: Look, booked: Count
) -> None:
    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        with ctx.transaction() as mine:
            book(mine, job)
            raise ValueError("no")

    job = put("a")
    assert drain() == DrainReport(claimed=1, retried=1)
    assert (look(job).status, look(job).last_error) == ("queued", "ValueError: no")
    assert booked() == 0


def test_a_lease_lost_meanwhile_rolls_both_back_and_is_raised(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, look: Look, booked: Count
) -> None:
    raised: list[LeaseLost] = []

    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        try:
            with ctx.transaction() as mine:
                book(mine, job)
                take_away(conn, job)
        except LeaseLost as error:
            raised.append(error)
            raise

    job, other = put("a"), put()
    assert drain() == DrainReport(claimed=2, done=1, lost=1)
    assert [error.job_id for error in raised] == [job.id]
    assert (look(job).status, look(other).status) == ("queued", "done")
    assert booked() == 0


def test_a_second_transaction_is_refused(
    tasks: Tasks, put: Put, drain: Drain, booked: Count
) -> None:
    refused: list[str] = []

    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        for _ in range(2):
            try:
                with ctx.transaction() as mine:
                    book(mine, job)
            except RuntimeError as error:
                refused.append(str(error))

    job = put("a")
    assert drain() == DrainReport(claimed=1, done=1)
    assert refused == [f"job {job.id} was completed by this attempt's first transaction"]
    assert booked() == 1


def test_a_transaction_that_failed_may_be_tried_again(
    tasks: Tasks, put: Put, drain: Drain, booked: Count
) -> None:
    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        for divisor in (0, 1):
            with suppress(ZeroDivisionError), ctx.transaction() as mine:
                book(mine, job)
                assert 1 / divisor

    put("a")
    assert drain() == DrainReport(claimed=1, done=1)
    assert booked() == 1


def roll_back() -> None:
    raise psycopg.Rollback


@pytest.mark.parametrize(
    ("answer", "report"),
    [
        (None, DrainReport(claimed=1, done=1)),
        (Retry("not yet"), DrainReport(claimed=1, retried=1)),
    ],
)
def test_a_swallowed_rollback_leaves_the_end_to_the_handler(
    answer: object, report: DrainReport, tasks: Tasks, put: Put, drain: Drain, booked: Count
) -> None:
    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> object:
        with ctx.transaction() as mine:
            book(mine, job)
            roll_back()
        return answer

    put("a")
    assert drain() == report
    assert booked() == 0


def test_ack_08_what_a_handler_does_after_its_commit_cannot_undo_it(
    tasks: Tasks, put: Put, drain: Drain, look: Look, booked: Count
) -> None:
    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        with ctx.transaction() as mine:
            book(mine, job)
        raise ValueError("too late")

    job = put("a")
    assert drain() == DrainReport(claimed=1, done=1)
    assert (look(job).status, look(job).last_error, booked()) == ("done", None, 1)


def test_ack_08_a_constraint_that_fails_at_the_commit_fails_the_attempt(
    tasks: Tasks, put: Put, drain: Drain, look: Look, booked: Count
) -> None:
    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        with ctx.transaction() as mine:
            book(mine, job)
            book(mine, job)

    job, other = put("a"), put()
    assert drain() == DrainReport(claimed=2, done=1, retried=1)
    assert look(job).status == "queued"
    assert str(look(job).last_error).startswith("UniqueViolation: duplicate key")
    assert (look(other).status, booked()) == ("done", 0)


def test_a_commit_whose_reply_was_lost_counts_if_it_was_done(
    tasks: Tasks, put: Put, drain: Drain, look: Look, booked: Count
) -> None:
    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        with ctx.transaction() as mine:
            assert isinstance(mine, Lossy)
            book(mine, job)
            mine.lose_after = 2  # the completion's reply arrives, the COMMIT's does not

    job = put("a")
    assert drain() == DrainReport(claimed=1, done=1)
    assert (look(job).status, look(job).attempts, booked()) == ("done", 1, 1)
    assert drain.worker.open == 0


def test_a_connection_lost_before_the_commit_fails_the_attempt(
    tasks: Tasks, put: Put, drain: Drain, look: Look, booked: Count
) -> None:
    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        with ctx.transaction() as mine:
            assert isinstance(mine, Lossy)
            book(mine, job)
            mine.lose_after = 1

    job = put("a")
    assert drain() == DrainReport(claimed=1, retried=1)
    assert (look(job).status, look(job).attempts, booked()) == ("queued", 1, 0)


def test_a_connection_lost_in_the_commit_fails_the_attempt_if_nothing_was_committed(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, look: Look, booked: Count
) -> None:
    conn.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
    )
    conn.execute(
        "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON ledger "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()"
    )

    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        with ctx.transaction() as mine:
            book(mine, job)

    job = put("a")
    assert drain() == DrainReport(claimed=1, retried=1)
    assert (look(job).status, booked()) == ("queued", 0)
    assert str(look(job).last_error).startswith("AdminShutdown")


def test_the_transaction_has_a_connection_of_its_own_closed_at_its_end(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    open_ones: list[int] = []

    @tasks.handler("a")
    def a(_job: Job, ctx: Context) -> None:
        open_ones.append(drain.worker.open)
        with ctx.transaction():
            open_ones.append(drain.worker.open)
        open_ones.append(drain.worker.open)

    put("a")
    drain()
    assert open_ones == [1, 2, 1]


def test_a_handler_can_ask_whether_its_job_was_cancelled(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    answers: list[bool] = []

    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        answers.append(ctx.cancelled)
        jobs.cancel(conn, job.id)
        answers.append(ctx.cancelled)

    job = put("a")
    assert drain() == DrainReport(claimed=1, lost=1)
    assert answers == [False, True]
    assert look(job).status == "cancelled"


def test_a_job_completed_by_its_transaction_was_not_cancelled(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    answers: list[bool] = []

    @tasks.handler("a")
    def a(_job: Job, ctx: Context) -> None:
        with ctx.transaction():
            pass
        answers.append(ctx.cancelled)

    put("a")
    drain()
    assert answers == [False]


def test_an_answer_returned_from_a_transaction_that_completed_the_job_is_told_of(
    tasks: Tasks, put: Put, drain: Drain, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    @tasks.handler("a")
    def a(_job: Job, ctx: Context) -> object:
        with ctx.transaction():
            return Snooze(MINUTE)

    job = put("a")
    assert drain() == DrainReport(claimed=1, done=1)
    assert look(job).status == "done"
    assert "its answer is not heard" in caplog.text


def test_a_thread_that_outlives_the_drain_opens_no_connection(
    tasks: Tasks, put: Put, drain: Drain
) -> None:
    kept: list[Context] = []
    tasks.handler("a")(lambda _job, ctx: kept.append(ctx))
    put("a")
    drain()
    with pytest.raises(RuntimeError, match="outlived it"):
        kept[0].extend(MINUTE)
    with pytest.raises(RuntimeError, match="outlived it"), kept[0].transaction():
        pass


def test_extend_prolongs_the_lease_of_this_job_only(
    tasks: Tasks, put: Put, drain: Drain, value: Value
) -> None:
    leases: list[float] = []

    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        ctx.extend(60 * MINUTE)
        leases.extend([value(LEASE, job.id), value(LEASE, other.id)])

    put("a")
    other = put()
    drain()
    assert leases == [pytest.approx(3600, abs=5), pytest.approx(300, abs=5)]


def test_extending_a_lost_lease_tells_the_handler_to_stop(
    conn: psycopg.Connection, tasks: Tasks, put: Put, drain: Drain, look: Look
) -> None:
    told: list[int] = []

    @tasks.handler("a")
    def a(job: Job, ctx: Context) -> None:
        take_away(conn, job)
        try:
            ctx.extend(MINUTE)
        except LeaseLost as error:
            told.append(error.job_id)

    taken = put("a")
    assert drain() == DrainReport(claimed=1, lost=1)
    assert told == [taken.id]
    assert (look(taken).status, look(taken).locked_until) == ("queued", None)


def test_a_handler_may_leave_the_context_out(tasks: Tasks, put: Put, drain: Drain) -> None:
    given: list[int] = []
    tasks.handler("one")(lambda job: given.append(job.id))
    tasks.handler("two")(lambda job, ctx: given.append(job.id if ctx else 0))
    tasks.handler("any")(lambda *both: given.append(len(both)))
    tasks.handler("default")(lambda job, *, _retries=3: given.append(job.id))
    ids = [put(task).id for task in ("one", "two", "any", "default")]
    assert drain() == DrainReport(claimed=4, done=4)
    assert given == [ids[0], ids[1], 2, ids[3]]
