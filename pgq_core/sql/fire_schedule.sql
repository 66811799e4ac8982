-- Purpose: enqueue the job of a slot and move the schedule on to `next`; no row = somebody else fired it, or is about to.
-- Invariant: each slot once, whoever fires it: the guard next_at = slot stands in the statement that enqueues.
-- Locks: the schedule's row, SKIP LOCKED: nobody waits for an open transaction elsewhere. Index: schedules_pkey.
WITH due AS MATERIALIZED (
    SELECT schedules.name
    FROM pgq_core.schedules
    WHERE schedules.name = %(name)s AND schedules.next_at = %(slot)s AND NOT schedules.paused
    FOR NO KEY UPDATE SKIP LOCKED
), fired AS (
    UPDATE pgq_core.schedules
    SET next_at = %(next)s, fired_at = schedules.next_at
    FROM due
    WHERE schedules.name = due.name AND schedules.next_at = %(slot)s
    RETURNING schedules.*
)
SELECT job.id
FROM fired CROSS JOIN LATERAL pgq_core.enqueue(
    task => fired.task, payload => fired.payload, queue => fired.queue, priority => fired.priority,
    max_attempts => fired.max_attempts,
    headers => jsonb_build_object('schedule', fired.name, 'slot', fired.fired_at)) AS job
