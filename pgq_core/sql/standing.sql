-- Purpose: say whether a job is still held by the claim that is named, for a handler that asks.
-- Invariant: a hint only; the writes check for themselves. Locks: none. Index: jobs_pkey.
SELECT jobs.id
FROM pgq_core.jobs
WHERE jobs.id = %(id)s AND jobs.status = 'running' AND jobs.attempts = %(attempts)s
