-- Purpose: take up to `limit` due jobs of a queue under a lease, best priority first, then the longest due.
-- Invariant: a job is taken by one claimer only, and never more than `limit` are (the CTE is MATERIALIZED, since
--   a sub-select may be planned to run again). Rows locked = rows claimed: one probe per priority, no sort above
--   the locking node. A paused queue has nothing due. `since` and `after`, per priority, pass by the entries of what was claimed
--   before (dead ones stay in the index as long as a snapshot elsewhere is older); nothing may end on such a claim.
--   `skipped` jobs are passed by: the application's own trigger refuses them.
-- Locks: FOR NO KEY UPDATE, so that a foreign key of the application to jobs (a key-share lock) hides nothing;
--   SKIP LOCKED, so that nobody waits. Index: jobs_ready_idx, jobs_pkey.
WITH next AS MATERIALIZED (
    SELECT ready.id
    FROM generate_series(0, 9) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT jobs.id
        FROM pgq_core.jobs
        WHERE jobs.queue = %(queue)s
          AND jobs.status = 'queued'
          AND jobs.priority = level.priority
          AND jobs.run_at <= now()
          AND (jobs.run_at, jobs.id) > (coalesce((%(since)s::timestamptz[])[level.priority + 1], '-infinity'),
                                        coalesce((%(after)s::bigint[])[level.priority + 1], 0))
          AND jobs.attempts - jobs.released < jobs.max_attempts
        ORDER BY jobs.run_at, jobs.id
        LIMIT %(limit)s::bigint + %(skipped)s::bigint
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS ready
    WHERE NOT EXISTS (SELECT FROM pgq_core.queues WHERE queues.name = %(queue)s AND queues.paused)
    LIMIT %(limit)s::bigint
    OFFSET %(skipped)s::bigint
), claimed AS (
    UPDATE pgq_core.jobs
    SET status = 'running',
        attempts = jobs.attempts + 1,
        locked_until = clock_timestamp() + %(lease)s::interval,
        locked_by = %(worker)s
    WHERE jobs.id = ANY (ARRAY(SELECT next.id FROM next))  -- by the key, whatever the statistics say
    RETURNING jobs.*
)
SELECT id, queue, task, payload::text, status, attempts, max_attempts, released, priority, run_at, created_at,
       locked_until, locked_by, crashed, unique_key, headers::text, last_error
FROM claimed
ORDER BY priority, run_at, id
