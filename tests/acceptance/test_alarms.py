"""One-time schedules: few of them for many delayed jobs, and none is left once it has fired."""

from datetime import timedelta

import pytest

from examples.signups.stage import Stack
from pgq_core import NewJob, jobs
from tests.acceptance.conftest import Shop, wait_for

# One process deploys the stack for all of them (with xdist: --dist loadgroup).
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("acceptance"),
]

DELAYED = 50
PAST = "at(2020-01-01T00:00:00)"  # fires with the emulator's next look, every 10 s
ADDED = {"Arn", "CreationDate", "LastModificationDate", "ResponseMetadata"}  # by the service


def test_sch_07_no_schedule_is_left_once_it_has_fired(shop: Shop, stack: Stack) -> None:
    """Nor is that of jobs which were cancelled meanwhile: it wakes a worker in vain, once."""
    client = stack.cloud.client("scheduler")

    def schedules() -> set[str]:
        found = client.list_schedules(GroupName="signups-alarms")["Schedules"]
        return {one["Name"] for one in found}

    before = schedules()
    delayed = NewJob("send_welcome", {}, queue="fires", delay=timedelta(minutes=10))
    with shop.producer.transaction(shop.db) as tx:
        many = tx.enqueue_many([delayed] * DELAYED)
    wait_for(lambda: bool(schedules() - before))
    [name] = schedules() - before
    assert [jobs.cancel(shop.db, one.id) for one in many] == ["cancelled"] * DELAYED
    armed = client.get_schedule(GroupName="signups-alarms", Name=name)
    asked = {key: value for key, value in armed.items() if key not in ADDED}
    client.update_schedule(**asked | {"ScheduleExpression": PAST})
    wait_for(lambda: name not in schedules())
    noted = "SELECT FROM pgq_core.queues WHERE name = 'fires' AND alarm_at IS NOT NULL"
    wait_for(lambda: not shop.db.execute(noted).fetchall())  # whom it woke has spent it
    assert name not in schedules()
