-- Purpose: prolong the leases of a worker that stays, from a thread of its own while a handler runs.
-- Invariant: only what still runs under this worker's own name, which no other has: reclaim takes the name away.
-- Locks: the rows, SKIP LOCKED: one that is being settled needs no lease. Index: jobs_lease_idx.
WITH held AS MATERIALIZED (
    SELECT jobs.id
    FROM pgq_core.jobs
    WHERE jobs.queue = %(queue)s AND jobs.status = 'running' AND jobs.locked_by = %(worker)s
      AND jobs.locked_until > now()
      AND jobs.locked_until < now() + %(lease)s::interval
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgq_core.jobs
SET locked_until = clock_timestamp() + %(lease)s::interval
FROM held
WHERE jobs.id = held.id AND jobs.status = 'running' AND jobs.locked_by = %(worker)s
RETURNING jobs.id
