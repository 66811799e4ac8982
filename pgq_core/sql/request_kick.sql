-- Purpose: decide whether a worker must be kicked for a queue, and if so note that a kick is pending.
--   `ids` are the jobs committed when all of them lie in the future; empty = something may be due now.
-- Invariant: runs after the commit, as a transaction of its own. A kick pending within the last 5 s means a worker
--   that has not cleared the mark yet and so will see this job; an older mark, or one from a clock that stepped, is
--   stale. A noted alarm no later than the jobs' run_at will wake somebody in time. A paused queue needs nobody.
--   `mark` is what was noted, null if the row was locked meanwhile: then kick without it. A missing row is made here;
--   if another transaction is making it, this fails after 100 ms (55P03) rather than wait for it: kick without a mark.
-- Locks: the queue's row, only to set the mark, SKIP LOCKED: no commit waits for another. Index: queues_pkey, jobs_pkey.
WITH due AS (
    SELECT min(jobs.run_at) AS at
    FROM pgq_core.jobs
    WHERE jobs.id = ANY (%(ids)s::bigint[]) AND jobs.status = 'queued'
), known AS (
    SELECT queues.paused
        OR coalesce(queues.kick_requested_at
            BETWEEN clock_timestamp() - interval '5 seconds' AND clock_timestamp(), false)
        OR coalesce(due.at > clock_timestamp()
            AND queues.alarm_at > clock_timestamp() AND queues.alarm_at <= due.at, false) AS quiet
    FROM pgq_core.queues CROSS JOIN due
    WHERE queues.name = %(queue)s
), free AS MATERIALIZED (
    SELECT queues.name
    FROM pgq_core.queues
    WHERE queues.name = %(queue)s AND NOT (SELECT quiet FROM known)
    FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
    UPDATE pgq_core.queues
    SET kick_requested_at = clock_timestamp()
    FROM free
    WHERE queues.name = free.name
    RETURNING kick_requested_at
), made AS (
    INSERT INTO pgq_core.queues (name, kick_requested_at)
    SELECT %(queue)s, clock_timestamp()
    WHERE NOT EXISTS (SELECT FROM known)
      AND set_config('lock_timeout', '100ms', true) IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING kick_requested_at
)
SELECT NOT coalesce((SELECT quiet FROM known), false) AS kick,
       coalesce((SELECT kick_requested_at FROM marked), (SELECT kick_requested_at FROM made)) AS mark
