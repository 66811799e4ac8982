-- Purpose: note that an alarm will be set for `at`; no row = an earlier one is noted already. Makes a missing row.
-- Invariant: noted before the alarm is called, so that no producer counts on an alarm that nobody has noted, and an
--   earlier alarm is never put off by a later one.
-- Locks: the queue's row, for 6 s (55P03). Index: queues_pkey.
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', '6s', true)
)
INSERT INTO pgq_core.queues AS old (name, alarm_at)
SELECT %(queue)s, %(at)s::timestamptz
FROM bounded
ON CONFLICT (name) DO UPDATE
SET alarm_at = EXCLUDED.alarm_at
WHERE old.alarm_at IS NULL OR old.alarm_at <= clock_timestamp() OR old.alarm_at > EXCLUDED.alarm_at
RETURNING old.name
