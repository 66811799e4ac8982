-- Purpose: say which jobs this claim has settled already, when a write is repeated because its reply was lost.
-- Invariant: success is told only to the claim that settled last, and only for the very same write.
-- Locks: none. Index: jobs_pkey.
SELECT jobs.id, jobs.status
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[]) AS mine (id, attempts)
JOIN pgq_core.jobs ON jobs.id = mine.id
WHERE jobs.settled = mine.attempts AND jobs.settled_as = %(verb)s
