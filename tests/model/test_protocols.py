"""No job is left behind in any interleaving; each rule of the protocols, broken, leaves one."""

import random
from collections.abc import Sequence

import psycopg
import pytest

from pgq_core import claim, enqueue, queues
from tests.conftest import Connect
from tests.model import alarms, kicks
from tests.model.machine import BEGIN, Actor, Let, Machine, State, Walk, left_behind, nothing, walk
from tests.model.reality import LEASE, NONE, QUEUE, Reality

PRODUCERS = [NONE] * 3  # each commits a job that is due at once


def start(instants: Sequence[int], spare: int) -> State:
    """Return a world of producers who are about to commit a job for these instants."""
    return State(tuple(sorted(Actor(BEGIN, at) for at in instants)), spare=spare)


def report(walked: Walk, machine: Machine) -> None:
    real = len(machine.reality.known)
    print(f"{walked.states} states, {real} runs of real statements so far")  # noqa: T201 - by pytest -rP


@pytest.mark.parametrize(("cap", "floor"), [(1, 3_000), (2, 30_000)])
def test_no_interleaving_of_producers_and_workers_leaves_a_job_behind(
    reality: Reality, cap: int, floor: int
) -> None:
    machine = Machine(reality, kicks.PROTOCOL, cap=cap)
    walked = walk(machine, start(PRODUCERS, spare=2))
    report(walked, machine)
    assert not walked.losing, walked
    assert walked.states > floor


@pytest.mark.parametrize("name", kicks.WRONG)
def test_each_rule_of_the_kicks_is_needed(reality: Reality, name: str) -> None:
    program = {**kicks.PROTOCOL, **kicks.WRONG[name]}
    walked = walk(Machine(reality, program, cap=1), start(PRODUCERS, spare=1))
    assert walked.losing, walked


def test_after_a_refused_kick_the_next_commit_kicks(reality: Reality) -> None:
    machine = Machine(reality, {**kicks.PROTOCOL, **kicks.REFUSALS}, cap=1)
    walked = walk(machine, start(PRODUCERS, spare=2), machine.silences)
    report(walked, machine)
    assert not walked.losing, walked
    assert walked.states > 3_000


def test_a_mark_that_is_not_withdrawn_silences_the_next_commit(reality: Reality) -> None:
    machine = Machine(
        reality, {**kicks.PROTOCOL, **kicks.REFUSALS, "withdraw": [Let(nothing)]}, cap=1
    )
    assert walk(machine, start(PRODUCERS, spare=1), machine.silences).losing


@pytest.mark.parametrize(
    ("instants", "spare", "floor"), [((1, 2), 1, 1_500), ((2, 3), 1, 1_500), ((1, 2, 3), 0, 10_000)]
)
def test_no_interleaving_of_alarms_leaves_a_job_behind(
    reality: Reality, instants: Sequence[int], spare: int, floor: int
) -> None:
    machine = Machine(reality, alarms.PROTOCOL, workers=2)
    walked = walk(machine, start(instants, spare))
    report(walked, machine)
    assert not walked.losing, walked
    assert walked.states > floor


@pytest.mark.parametrize("name", alarms.WRONG)
def test_each_rule_of_the_alarms_is_needed(reality: Reality, name: str) -> None:
    program = {**alarms.PROTOCOL, **alarms.WRONG[name]}
    walked = walk(Machine(reality, program, workers=2), start((1, 2), spare=1))
    assert walked.losing, walked


def test_after_a_refused_alarm_the_next_commit_kicks(reality: Reality) -> None:
    machine = Machine(reality, {**alarms.PROTOCOL, **alarms.REFUSALS}, workers=2)
    begin = start((1, 2), spare=1)
    assert walk(machine, begin, left_behind).losing, "nothing was refused"
    walked = walk(machine, begin, machine.silences)
    report(walked, machine)
    assert not walked.losing, walked


def test_a_step_has_the_same_effect_whatever_else_is_in_the_tables(reality: Reality) -> None:
    walk(Machine(reality, kicks.PROTOCOL, cap=2), start(PRODUCERS, spare=0))
    walk(Machine(reality, alarms.PROTOCOL, workers=2), start((1, 2), spare=0))
    reality.conn.execute(
        """
        INSERT INTO pgq_core.jobs (queue, task, status, locked_by, locked_until, finished_at)
        SELECT 'another', 't', status, 'another', now() + interval '1 hour', now()
        FROM unnest('{queued,running,done,failed}'::text[]) AS status, generate_series(1, 50)
        """
    )
    reality.conn.execute(
        "INSERT INTO pgq_core.queues VALUES ('another', true, 1, now(), now() + '1 day')"
    )
    for statement, view, at in random.sample(list(reality.known), 100):
        again = reality.run(statement, view, at)
        assert again == reality.known[statement, view, at], (statement, view, at)


def test_a_clear_that_is_not_committed_yet_silences_a_producer(
    conn: psycopg.Connection, connect: Connect
) -> None:
    """What "clears and claims in one transaction" stands for, on two connections."""
    worker = connect()
    assert queues.request_kick(conn, QUEUE)[0]
    with worker.transaction():
        queues.wake(worker, QUEUE, None)
        assert claim.claim(worker, QUEUE, 1, LEASE, worker="me") == []
        enqueue(conn, "t", {}, queue=QUEUE)
        assert not queues.request_kick(conn, QUEUE)[0]
