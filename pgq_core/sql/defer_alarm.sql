-- Purpose: after an alarm was refused, let 5 minutes pass before every commit of a future job kicks again.
-- Invariant: only the mark that the caller noted. Locks: the queue's row. Index: queues_pkey.
UPDATE pgq_core.queues
SET alarm_at = clock_timestamp() + interval '5 minutes'
WHERE name = %(queue)s AND alarm_at = %(at)s
