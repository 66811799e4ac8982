-- Purpose: after an alarm was refused, let 5 minutes pass before every commit of a future job kicks again.
-- Invariant: only the mark that the caller noted. Locks: the queue's row, for 6 s (55P03). Index: queues_pkey.
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', '6s', true)
)
UPDATE pgq_core.queues
SET alarm_at = clock_timestamp() + interval '5 minutes'
FROM bounded
WHERE name = %(queue)s AND alarm_at = %(at)s
