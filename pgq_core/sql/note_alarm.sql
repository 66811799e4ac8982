-- Purpose: note that an alarm will be set for `at`; no row = an earlier one is noted already. Makes a missing row.
-- Invariant: noted before the alarm is called, so that no producer counts on an alarm that nobody has noted, and an
--   earlier alarm is never put off by a later one. Locks: the queue's row. Index: queues_pkey.
INSERT INTO pgq_core.queues AS old (name, alarm_at)
VALUES (%(queue)s, %(at)s)
ON CONFLICT (name) DO UPDATE
SET alarm_at = EXCLUDED.alarm_at
WHERE old.alarm_at IS NULL OR old.alarm_at <= clock_timestamp() OR old.alarm_at > EXCLUDED.alarm_at
RETURNING old.name
