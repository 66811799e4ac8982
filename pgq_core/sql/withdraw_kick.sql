-- Purpose: take back a mark whose kick was not accepted, so that the next commit kicks again.
-- Invariant: only the mark that was set by the caller. Locks: the queue's row. Index: queues_pkey.
UPDATE pgq_core.queues
SET kick_requested_at = NULL
WHERE name = %(queue)s AND kick_requested_at = %(mark)s
