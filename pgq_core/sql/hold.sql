-- Purpose: wait for the row of a job still held, so that the write which follows in this transaction finds it free.
-- Invariant: the fence. Locks: the row, waiting at most as long as bound_wait allows. Index: jobs_pkey.
SELECT jobs.id
FROM pgq_core.jobs
WHERE jobs.id = %(id)s AND jobs.status = 'running' AND jobs.attempts = %(attempts)s
FOR NO KEY UPDATE
