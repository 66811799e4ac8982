-- Purpose: say which jobs are still held by the claims that are named, and whether their leases last.
-- Invariant: a hint only; the writes check for themselves. Locks: none. Index: jobs_pkey.
SELECT jobs.id, jobs.locked_until > clock_timestamp()
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[]) AS mine (id, attempts)
JOIN pgq_core.jobs ON jobs.id = mine.id
WHERE jobs.status = 'running' AND jobs.attempts = mine.attempts
