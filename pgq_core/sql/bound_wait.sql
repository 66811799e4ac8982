-- Purpose: let the rest of this transaction wait for locks as long as the job's lease lasts; no row = lease lost.
-- Invariant: a lock held elsewhere delays a worker within its lease only. Locks: none. Index: jobs_pkey.
SELECT set_config('lock_timeout', greatest(
    1, (extract(epoch FROM jobs.locked_until - clock_timestamp()) * 1000)::bigint)::text, true)
FROM pgq_core.jobs
WHERE jobs.id = %(id)s AND jobs.status = 'running' AND jobs.attempts = %(attempts)s
