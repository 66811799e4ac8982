-- Purpose: the figures of each queue that has a row, unfinished jobs or failed ones.
-- Invariant: never reads the history: unfinished jobs and failures are counted in their indexes, done ones not at all.
-- Locks: none. Index: jobs_ready_idx, jobs_lease_idx, jobs_finished_idx (index-only once vacuumed).
WITH queued AS (
    SELECT jobs.queue,
           count(*) FILTER (WHERE jobs.run_at <= now()) AS ready,
           count(*) FILTER (WHERE jobs.run_at > now()) AS delayed,
           now() - min(jobs.run_at) FILTER (WHERE jobs.run_at <= now()) AS oldest
    FROM pgq_core.jobs
    WHERE jobs.status = 'queued'
    GROUP BY jobs.queue
), running AS (
    SELECT jobs.queue, count(*) AS running, count(*) FILTER (WHERE jobs.locked_until < now()) AS expired
    FROM pgq_core.jobs
    WHERE jobs.status = 'running' AND jobs.locked_until IS NOT NULL
    GROUP BY jobs.queue
), failed AS (
    SELECT jobs.queue, count(*) AS failed
    FROM pgq_core.jobs
    WHERE jobs.status IN ('done', 'failed', 'cancelled') AND jobs.status = 'failed'
    GROUP BY jobs.queue
)
SELECT queue, coalesce(paused, false), coalesce(max_workers, 10), coalesce(ready, 0), coalesce(delayed, 0),
       coalesce(running, 0), coalesce(expired, 0), coalesce(failed, 0), oldest
FROM (SELECT queues.name AS queue, queues.paused, queues.max_workers FROM pgq_core.queues) AS settings
FULL JOIN queued USING (queue)
FULL JOIN running USING (queue)
FULL JOIN failed USING (queue)
ORDER BY queue
