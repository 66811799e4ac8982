-- Purpose: say when a worker is needed next on a queue, and how far off that is; no row = never, as things stand.
--   The earliest of the next run_at in the future, the end of a live lease and the next cron slot; 30 s if a lock hid a
--   due job or an expired lease (behind which the next in the future is looked for all the same), 1 s if a slot has
--   fallen due meanwhile, or a lock hid it.
-- Invariant: read holding no lease, after an empty claim. A paused queue has nothing due.
-- Locks: none. Index: jobs_ready_idx, jobs_lease_idx, schedules_next_idx.
WITH next AS (
    SELECT CASE WHEN jobs.run_at <= now() THEN now() + interval '30 seconds' ELSE jobs.run_at END AS at
    FROM generate_series(0, 9) AS level (priority)
    CROSS JOIN (VALUES (timestamptz '1999-01-01 00:00Z'), (now())) AS after (instant)
    CROSS JOIN LATERAL (
        SELECT queued.run_at
        FROM pgq_core.jobs AS queued
        WHERE queued.queue = %(queue)s AND queued.status = 'queued' AND queued.priority = level.priority
          AND queued.run_at > after.instant AND queued.attempts - queued.released < queued.max_attempts
        ORDER BY queued.run_at
        LIMIT 1
    ) AS jobs
    UNION ALL
    SELECT CASE WHEN jobs.locked_until <= now() THEN now() + interval '30 seconds' ELSE jobs.locked_until END
    FROM (VALUES (timestamptz '1999-01-01 00:00Z'), (now())) AS after (instant)
    CROSS JOIN LATERAL (
        SELECT running.locked_until
        FROM pgq_core.jobs AS running
        WHERE running.queue = %(queue)s AND running.status = 'running' AND running.locked_until > after.instant
        ORDER BY running.locked_until
        LIMIT 1
    ) AS jobs
    UNION ALL
    SELECT greatest(min(schedules.next_at), now() + interval '1 second')
    FROM pgq_core.schedules
    WHERE schedules.queue = %(queue)s AND NOT schedules.paused
    HAVING min(schedules.next_at) IS NOT NULL
)
SELECT min(at), min(at) - clock_timestamp()
FROM next
WHERE NOT EXISTS (SELECT FROM pgq_core.queues WHERE queues.name = %(queue)s AND queues.paused)
HAVING min(at) IS NOT NULL
