-- Purpose: note that an alarm will be set for `at`; no row = an earlier one is noted already.
-- Invariant: noted before the alarm is called, so that no producer counts on an alarm that nobody has noted, and an
--   earlier alarm is never put off by a later one. Locks: the queue's row. Index: queues_pkey.
UPDATE pgq_core.queues
SET alarm_at = %(at)s
WHERE name = %(queue)s AND (alarm_at IS NULL OR alarm_at <= clock_timestamp() OR alarm_at > %(at)s)
RETURNING name
