-- Purpose: let the rest of this transaction wait for locks for `wait`, or as long as the job's lease lasts; no row =
--   lease lost. Invariant: a lock held elsewhere delays a worker within its lease only.
-- Locks: none. Index: jobs_pkey. lock_timeout is in milliseconds, an integer: 24 days at the most.
SELECT set_config('lock_timeout', least(2147483647, greatest(1, (1000 * extract(
    epoch FROM least(jobs.locked_until - clock_timestamp(), %(wait)s::interval)))::bigint))::text, true)
FROM pgq_core.jobs
WHERE jobs.id = %(id)s AND jobs.status = 'running' AND jobs.attempts = %(attempts)s
