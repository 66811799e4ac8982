"""What a drain costs: the round trips to the database, named and counted."""

from typing import Any

import psycopg
import pytest

from pgq_core import NoKick, Tasks, claim
from tests.worker.fakes import Drain, Put, Statements, TimeLeft

WAKE = ["ledger", "wake", "reclaim", "due_schedules", "crowd"]


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count what goes over the wire, so that no BEGIN or COMMIT hides between the statements."""
    trips = [-1]  # psycopg waits once, for nothing, when it is set to autocommit
    wait = psycopg.Connection.wait

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        trips[0] += self.info.parameter_status("application_name") == "worker under test"
        return wait(self, *args, **options)

    monkeypatch.setattr(psycopg.Connection, "wait", counted)
    return trips


def test_an_empty_wake_costs_seven_statements(
    drain: Drain, statements: Statements, round_trips: list[int]
) -> None:
    drain(time_left=TimeLeft(60))
    assert statements.sent == [*WAKE, "claim", "outlook"]
    assert round_trips == [7]
    assert len(drain.worker.opened) == 1


def test_a_batch_costs_two_statements_however_many_jobs_it_holds(
    put: Put, drain: Drain, statements: Statements, round_trips: list[int]
) -> None:
    for _ in range(50):
        put()
    statements.sent.clear()
    drain(batch_size=50, kick=NoKick(), time_left=TimeLeft(60))
    assert statements.sent == [*WAKE, "claim", "complete", "claim", "outlook"]
    assert round_trips == [9]


def test_a_backlog_costs_one_look_more_per_full_batch(
    put: Put, drain: Drain, statements: Statements
) -> None:
    for _ in range(4):
        put()
    statements.sent.clear()
    drain(batch_size=2)
    assert statements.sent == [
        *WAKE,
        *("claim", "crowd", "request_kick", "complete"),
        *("claim", "crowd", "complete"),
        *("claim", "outlook"),
    ]
    assert len(drain.kicks.sent) == 1


def test_a_failure_costs_one_statement_of_its_own_and_an_alarm(
    tasks: Tasks, put: Put, drain: Drain, statements: Statements
) -> None:
    tasks.handler("bad")(lambda job: 1 / (job.attempts - job.attempts))
    put("bad")
    put()
    statements.sent.clear()
    drain()
    assert statements.sent == [
        *WAKE,
        "claim",
        "fail",
        "complete",
        "claim",
        "outlook",
        "note_alarm",
    ]


def test_a_hand_over_costs_a_release_and_a_look(
    tasks: Tasks, put: Put, drain: Drain, statements: Statements
) -> None:
    left = TimeLeft(60)
    tasks.handler("last")(lambda _job: setattr(left, "seconds", 1))
    put("last")
    put()
    statements.sent.clear()
    drain(time_left=left)
    assert statements.sent == [*WAKE, "claim", "complete", "release", "crowd"]


def test_a_claim_of_ones_own_costs_one_statement(
    conn: psycopg.Connection, put: Put, statements: Statements
) -> None:
    put()
    statements.sent.clear()
    claim.claim(conn, "default", 10, TimeLeft(60)())
    assert statements.sent == ["claim"]
