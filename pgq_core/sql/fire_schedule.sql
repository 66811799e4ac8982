-- Purpose: enqueue the job of a slot and move the schedule on to `next`; no row = somebody else fired it.
-- Invariant: each slot once, whoever fires it: the guard next_at = slot stands in the update that enqueues.
-- Locks: the schedule's row. Index: schedules_pkey.
WITH fired AS (
    UPDATE pgq_core.schedules
    SET next_at = %(next)s, fired_at = next_at
    WHERE name = %(name)s AND next_at = %(slot)s AND NOT paused
    RETURNING *
)
SELECT job.id
FROM fired CROSS JOIN LATERAL pgq_core.enqueue(
    task => fired.task, payload => fired.payload, queue => fired.queue, priority => fired.priority,
    max_attempts => fired.max_attempts,
    headers => jsonb_build_object('schedule', fired.name, 'slot', fired.fired_at)) AS job
