"""Time: the database's clock decides, and a worker's or an application's own does not matter."""

import sys
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pgq_core import Context, DrainReport, Job, NewJob, Retry, Snooze, Tasks, enqueue, enqueue_many
from pgq_core.claim import claim
from tests.sql.rows import Rows
from tests.worker.fakes import Drain, Put, TimeLeft

MINUTE = timedelta(minutes=1)
WRONG_BY = [timedelta(minutes=-10), timedelta(0), timedelta(minutes=10)]


class Clock(type):
    """A `datetime` of the wrong time takes those of the right one for its own."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)


@pytest.fixture(params=WRONG_BY, ids=["behind", "right", "ahead"])
def wrong_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """Put the clock of this process wrong, for every module of the library."""
    wrong: timedelta = request.param
    seconds = time.time

    class Wrong(datetime, metaclass=Clock):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + wrong  # type: ignore[arg-type]

    ours = [module for name, module in sys.modules.items() if name.startswith("pgq_core")]
    for module in ours:
        if hasattr(module, "datetime"):
            monkeypatch.setattr(module, "datetime", Wrong)
    monkeypatch.setattr(time, "time", lambda: seconds() + wrong.total_seconds())
    return wrong


@pytest.mark.usefixtures("wrong_by")
def test_sch_01_a_worker_whose_clock_is_wrong_decides_like_any_other(
    rows: Rows, tasks: Tasks, put: Put, drain: Drain
) -> None:
    leases: list[float] = []

    @tasks.handler("holds")
    def holds(job: Job, ctx: Context) -> None:
        leases.append(rows.seconds_to(job, "locked_until"))
        ctx.extend(2 * MINUTE)
        leases.append(rows.seconds_to(job, "locked_until"))

    tasks.handler("again")(lambda _job: Retry("later", after=MINUTE))
    tasks.handler("not now")(lambda _job: Snooze(MINUTE))
    tasks.handler("fails")(lambda job: job.payload["missing"])
    put("holds")
    waits = {put("again").id: 60, put("not now").id: 60, put("fails").id: 20}
    waits[put(delay=MINUTE).id] = 60
    crashed, alive = rows.add(2, status="running", attempts=1, locked_until="2030-01-01Z")
    rows.expire(crashed)
    rows.age(alive, "locked_until", -60)
    report = drain(time_left=TimeLeft(60))
    assert report == DrainReport(claimed=4, done=1, retried=2, snoozed=1, reclaimed=1)
    assert leases == pytest.approx([65, 120], abs=5)
    assert {id_: rows.seconds_to(id_) for id_ in waits} == pytest.approx(waits, abs=5)
    assert rows.seconds_to(crashed) == pytest.approx(20, abs=5)
    assert rows.read(alive)["status"] == "running"


def test_sch_01_an_alarm_is_by_the_clock_that_aws_will_compare_it_with(
    wrong_by: timedelta, put: Put, drain: Drain
) -> None:
    """That is this process's, if any: the database's gives the distance only."""
    put(delay=10 * MINUTE)
    here = datetime.now(UTC) + wrong_by
    drain()
    [at] = drain.alarms.armed
    assert (at - here).total_seconds() == pytest.approx(600, abs=5)


APART = [timedelta(seconds=5), timedelta(hours=-1)]


@pytest.mark.usefixtures("wrong_by")
@pytest.mark.parametrize("wrong_by", APART, ids=["ahead", "behind"], indirect=True)
def test_sch_02_a_job_for_now_is_due_at_once(conn: psycopg.Connection) -> None:
    ids = [enqueue(conn, "t", {}).id]
    ids += [one.id for one in enqueue_many(conn, [NewJob("t", {}), NewJob("t", {})])]
    assert [job.id for job in claim(conn, "default", 10, MINUTE)] == ids


def test_sch_02_an_instant_before_the_jobs_creation_is_taken(conn: psycopg.Connection) -> None:
    """An application whose clock is behind gives its own now as the run_at."""
    job = enqueue(conn, "t", {}, run_at=datetime.now(UTC) - timedelta(hours=1))
    [claimed] = claim(conn, "default", 10, MINUTE)
    assert (claimed.id, claimed.run_at < claimed.created_at) == (job.id, True)
