-- Purpose: say whether as many workers as the queue allows hold live leases (`worker` itself not counted), and
--   whether a job is due (`since` and `after` as in claim).
-- Invariant: read after the mark is cleared and committed; checked before, it loses a job. Soft by those that start
--   in the same instant. Locks: none. Index: jobs_lease_idx, jobs_ready_idx.
SELECT (
    SELECT count(DISTINCT jobs.locked_by)
    FROM pgq_core.jobs
    WHERE jobs.queue = %(queue)s AND jobs.status = 'running' AND jobs.locked_until > now()
      AND jobs.locked_by IS DISTINCT FROM %(worker)s
) >= coalesce((SELECT queues.max_workers FROM pgq_core.queues WHERE queues.name = %(queue)s), 10) AS full_house,
EXISTS (
    SELECT
    FROM generate_series(0, 9) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT
        FROM pgq_core.jobs
        WHERE jobs.queue = %(queue)s AND jobs.status = 'queued' AND jobs.priority = level.priority
          AND jobs.run_at <= now() AND jobs.attempts - jobs.released < jobs.max_attempts
          AND (jobs.run_at, jobs.id) > (coalesce((%(since)s::timestamptz[])[level.priority + 1], '-infinity'),
                                        coalesce((%(after)s::bigint[])[level.priority + 1], 0))
        ORDER BY jobs.run_at, jobs.id
        LIMIT 1
    ) AS ready
    WHERE NOT EXISTS (SELECT FROM pgq_core.queues WHERE queues.name = %(queue)s AND queues.paused)
) AS due
