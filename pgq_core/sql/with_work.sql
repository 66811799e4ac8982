-- Purpose: list the queues, not paused, that have a due job, cron slot or expired lease: what the sweep has to drain.
-- Invariant: steps from one queue name to the next in the index, so that a backlog costs no more than one row.
-- Locks: none. Index: jobs_ready_idx, jobs_lease_idx, schedules_next_idx.
WITH RECURSIVE named AS (
    (SELECT jobs.queue FROM pgq_core.jobs WHERE jobs.status = 'queued' ORDER BY jobs.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT jobs.queue FROM pgq_core.jobs
            WHERE jobs.status = 'queued' AND jobs.queue > named.queue ORDER BY jobs.queue LIMIT 1)
    FROM named
    WHERE named.queue IS NOT NULL
), work AS (
    SELECT named.queue
    FROM named
    WHERE EXISTS (
        SELECT
        FROM generate_series(0, 9) AS level (priority)
        CROSS JOIN LATERAL (
            SELECT
            FROM pgq_core.jobs
            WHERE jobs.queue = named.queue AND jobs.status = 'queued' AND jobs.priority = level.priority
              AND jobs.run_at <= now()
            ORDER BY jobs.run_at
            LIMIT 1
        ) AS ready)
    UNION
    SELECT jobs.queue
    FROM pgq_core.jobs
    WHERE jobs.status = 'running' AND jobs.locked_until < now()
    UNION
    SELECT schedules.queue
    FROM pgq_core.schedules
    WHERE NOT schedules.paused AND schedules.next_at <= now()
)
SELECT work.queue
FROM work
WHERE NOT EXISTS (SELECT FROM pgq_core.queues WHERE queues.name = work.queue AND queues.paused)
ORDER BY work.queue
