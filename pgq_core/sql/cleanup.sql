-- Purpose: delete up to `limit` finished jobs that have been kept long enough; return how many went.
-- Invariant: never a queued or running job, never a finished one before its time.
-- Locks: FOR UPDATE SKIP LOCKED, oldest first: several cleanups share the work. Index: jobs_finished_idx.
WITH old AS MATERIALIZED (
    SELECT finished.id
    FROM (VALUES ('done', %(done)s::interval), ('failed', %(failed)s::interval), ('cancelled', %(failed)s::interval))
        AS kept (status, period)
    CROSS JOIN LATERAL (
        SELECT jobs.id
        FROM pgq_core.jobs
        WHERE jobs.status IN ('done', 'failed', 'cancelled')
          AND jobs.status = kept.status
          AND coalesce(jobs.finished_at, jobs.created_at) < now() - kept.period
        ORDER BY coalesce(jobs.finished_at, jobs.created_at)
        LIMIT %(limit)s::bigint
        FOR UPDATE SKIP LOCKED
    ) AS finished
    LIMIT %(limit)s::bigint
), gone AS (
    DELETE FROM pgq_core.jobs
    WHERE jobs.id = ANY (ARRAY(SELECT old.id FROM old))  -- by the key, whatever the statistics say
    RETURNING jobs.id
)
SELECT count(*) FROM gone
