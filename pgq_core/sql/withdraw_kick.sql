-- Purpose: take back a mark whose kick was not accepted, so that the next commit kicks again.
-- Invariant: only the mark that was set by the caller; one that stays because the row is locked is stale in 5 s.
-- Locks: the queue's row, SKIP LOCKED: no commit waits for another. Index: queues_pkey.
WITH free AS MATERIALIZED (
    SELECT queues.name
    FROM pgq_core.queues
    WHERE queues.name = %(queue)s AND queues.kick_requested_at = %(mark)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgq_core.queues
SET kick_requested_at = NULL
FROM free
WHERE queues.name = free.name
