"""Any sequence of operations, by several workers, leaves in the table what the model says.

Ageing the rows is the only clock that counts: every delay, lease and backoff is a multiple of
GRAIN, and a sequence takes less than that, so what is due in the model is due in the database.
"""

import os
from datetime import timedelta
from functools import partial
from itertools import cycle
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pgq_core import (
    Enqueued,
    Job,
    NewJob,
    Tasks,
    enqueue,
    enqueue_many,
    fence,
    jobs,
    queues,
    reaper,
    work,
)
from pgq_core.claim import claim
from tests.conftest import Connect
from tests.property import stage
from tests.property.model import MINUTE, Model
from tests.sql.verbs import COMPLETE, RELEASE, Verb

EXAMPLES = int(os.environ.get("EXAMPLES", "100"))
STEPS = 40


class Machine(RuleBasedStateMachine):
    """Do the same to the database and to the model."""

    ids = Bundle("ids")
    claims = Bundle("claims")  # a batch each, of whatever age: most become stale

    dsn: str
    conn: psycopg.Connection
    watch: psycopg.Connection

    def __init__(self) -> None:
        super().__init__()
        self.conn.execute(stage.EMPTY)
        self.now = 0
        self.models: dict[int, Model] = {}
        self.archived: set[int] = set()
        self.paused: set[str] = set()

    def put(self, new: dict[str, Any], answer: Enqueued) -> int:
        same = self.with_key(new["queue"], new["unique_key"])
        assert answer == Enqueued(id=same[0] if same else answer.id, inserted=not same)
        if answer.inserted:
            assert answer.id not in self.models
            given = {name: value for name, value in new.items() if name != "delay"}
            delay = new["delay"] or timedelta(0)
            self.models[answer.id] = Model(**given, due=self.now + delay // stage.SECOND)
        return answer.id

    def with_key(self, queue: str, key: str | None) -> list[int]:
        """Return the unfinished job with this key, if there is one."""
        of_key = (
            i for i, one in self.models.items() if (one.queue, one.unique_key) == (queue, key)
        )
        return [i for i in of_key if key and self.models[i].unfinished]

    @rule(target=ids, new=stage.NEW)
    def enqueue(self, new: dict[str, Any]) -> int:
        return self.put(new, enqueue(self.conn, "task", {}, **new))

    @initialize(target=ids, many=st.lists(stage.NEW, min_size=3, max_size=6))
    def start_with_some(self, many: list[dict[str, Any]]) -> Any:
        return self.enqueue_many(many)

    @rule(target=ids, many=st.lists(stage.NEW, min_size=1, max_size=4))
    def enqueue_many(self, many: list[dict[str, Any]]) -> Any:
        answers = enqueue_many(self.conn, [NewJob("task", {}, **new) for new in many])
        return multiple(*(self.put(*each) for each in zip(many, answers, strict=True)))

    def due(self, queue: str) -> dict[int, Model]:
        if queue in self.paused:
            return {}
        of_queue = ((i, one) for i, one in self.models.items() if one.queue == queue)
        return {i: one for i, one in of_queue if one.is_due(self.now)}

    @rule(
        target=claims,
        queue=stage.QUEUES,
        worker=stage.WORKERS,
        limit=st.integers(1, 3),
        lease=st.sampled_from([MINUTE, 2 * MINUTE]),
        ends=st.lists(st.sampled_from([*stage.VERBS, None, None]), min_size=3, max_size=3),
    )
    def claim(
        self, queue: str, worker: str, limit: int, lease: int, ends: list[Verb | None]
    ) -> Any:
        due = self.due(queue)
        batch = claim(self.conn, queue, limit, lease * stage.SECOND, worker=worker)
        order = [(job.priority, due[job.id].due) for job in batch]
        assert order == sorted((one.priority, one.due) for one in due.values())[:limit]
        for job in batch:
            due[job.id].claim(worker, self.now, lease)
        for job, end in zip(batch, ends, strict=False):
            assert end is None or end(self.conn, job) == self.write(end, job)
        return batch or multiple()

    def write(self, verb: Verb, job: Job) -> bool:
        """Write to the model; a job that was cleaned up is lost."""
        one = self.models.get(job.id)
        return one is not None and one.write(verb.name, job.attempts, self.now)

    @rule(
        batch=claims,
        nth=st.integers(0, 2),
        verb=st.sampled_from(stage.VERBS),
        times=stage.TIMES,
    )
    def settle(self, batch: list[Job], nth: int, verb: Verb, times: int) -> None:
        job = batch[nth % len(batch)]
        for _ in range(times):
            assert verb(self.conn, job) == self.write(verb, job)

    @rule(batch=claims, verb=st.sampled_from([COMPLETE, RELEASE]), times=stage.TIMES)
    def settle_batch(self, batch: list[Job], verb: Verb, times: int) -> None:
        for _ in range(times):
            written = {job.id for job in batch if self.write(verb, job)}
            assert getattr(fence, verb.name)(self.conn, batch) == written

    @rule(batch=consumes(claims))
    def crash(self, batch: list[Job]) -> None:  # noqa: ARG002 - nobody speaks for it any more
        self.age(2 * MINUTE, then_reclaim=True)
        self.age(MINUTE, then_reclaim=False)

    @precondition(lambda self: any(one.is_waiting(self.now) for one in self.models.values()))
    @rule(
        queue=stage.QUEUES,
        batch_size=st.integers(1, 3),
        verbs=st.lists(st.sampled_from(sorted(stage.ANSWERS)), min_size=1, max_size=4),
    )
    def work(self, queue: str, batch_size: int, verbs: list[str]) -> None:
        back = self.put_back(queue)
        due = self.due(queue)
        script, tasks = stage.Script(self.watch, cycle(verbs)), Tasks()
        tasks.handler("task")(script)
        suspects = any(one.crashed for one in due.values())
        report = work(partial(psycopg.connect, self.dsn), tasks, queue=queue, batch_size=batch_size)
        assert sorted(job.id for job, _, _ in script.ran) == sorted(due)
        released = sum(self.follow(*each) for each in script.ran)
        assert not released or suspects
        assert (report.reclaimed, report.released) == (len(back), released)
        assert (report.claimed, report.lost) == (len(due) + released, 0)

    def follow(self, job: Job, verb: str, neighbours: int) -> int:
        """Run a job of a drain in the model; return how often it was handed back before."""
        assert not (job.crashed and neighbours), "a suspect runs alone"
        one = self.models[job.id]
        handed_back = job.attempts - 1 - one.attempts
        for _ in range(handed_back):
            one.claim("drain", self.now, MINUTE)
            assert one.write("release", one.attempts, self.now)
        one.claim("drain", self.now, MINUTE)
        assert one.write(verb, job.attempts, self.now)
        return handed_back

    def put_back(self, queue: str | None) -> set[int]:
        of_queue = {i for i, one in self.models.items() if queue in (None, one.queue)}
        return {i for i in of_queue if self.models[i].reclaim(self.now)}

    @rule(queue=st.none() | stage.QUEUES)
    def reclaim(self, queue: str | None) -> None:
        expected = self.put_back(queue)
        assert {one.id for one in reaper.reclaim(self.conn, queue=queue)} == expected

    @precondition(lambda self: not all(one.unfinished for one in self.models.values()))
    @rule(archive=st.booleans())
    def cleanup(self, archive: bool) -> None:  # noqa: FBT001 - drawn by name
        ended = {i: one for i, one in self.models.items() if not one.unfinished}
        old = {i for i, one in ended.items() if one.ended + stage.KEPT[one.status] <= self.now}
        done, failed = (stage.KEPT[name] * stage.SECOND for name in ("done", "failed"))
        assert reaper.cleanup(self.conn, done=done, failed=failed, archive=archive) == len(old)
        self.models = {i: one for i, one in self.models.items() if i not in old}
        self.archived |= old if archive else set()

    @rule(job_id=ids)
    def cancel(self, job_id: int) -> None:
        one = self.models.get(job_id)
        assert jobs.cancel(self.conn, job_id) == (one and one.cancel(self.now))

    @rule(job_id=ids)
    def retry(self, job_id: int) -> None:
        one = self.models.get(job_id)
        in_use = one is not None and bool(self.with_key(one.queue, one.unique_key))
        expected = one and one.retry(self.now, key_in_use=in_use)
        assert jobs.retry(self.conn, job_id) == expected

    @rule(batch=claims, times=st.sampled_from([2, 1]))
    def cancel_and_retry(self, batch: list[Job], times: int) -> None:
        for _ in range(times):
            self.cancel(batch[0].id)
            self.retry(batch[0].id)

    @rule(queue=stage.QUEUES, paused=st.sampled_from([False, False, False, True]))
    def pause_or_resume(self, queue: str, paused: bool) -> None:  # noqa: FBT001 - drawn by name
        (queues.pause if paused else queues.resume)(self.conn, queue)
        self.paused = self.paused | {queue} if paused else self.paused - {queue}

    @precondition(lambda self: any(one.row(self.now)[-1] for one in self.models.values()))
    @rule(by=st.sampled_from([stage.GRAIN, MINUTE, 2 * MINUTE, 3600]), then_reclaim=st.booleans())
    def age(self, by: int, then_reclaim: bool) -> None:  # noqa: FBT001 - drawn by name
        self.conn.execute(stage.AGE, {"by": by * stage.SECOND})
        self.now += by
        if then_reclaim:
            self.reclaim(None)

    @invariant()
    def the_table_is_as_the_model_says(self) -> None:
        assert self.watch.execute(stage.SEEN).fetchall() == [
            (i, *one.row(self.now)) for i, one in sorted(self.models.items())
        ]
        archived = self.watch.execute(stage.ARCHIVED).fetchall()
        assert {job_id for (job_id,) in archived} == self.archived


@pytest.mark.timeout(max(120, 3 * EXAMPLES))
def test_any_sequence_of_operations_leaves_what_the_model_says(dsn: str, connect: Connect) -> None:
    Machine.dsn, Machine.conn, Machine.watch = dsn, connect(), connect()
    steps = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
    run_state_machine_as_test(Machine, settings=steps)
