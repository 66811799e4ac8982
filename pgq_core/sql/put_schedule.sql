-- Purpose: make a schedule or change it; its next slot is counted anew only if its times change. No row = a schedule of
--   that name belongs to the other side, code or hand.
-- Invariant: a paused schedule stays paused. Locks: the schedule's row. Index: schedules_pkey.
INSERT INTO pgq_core.schedules AS old
    (name, cron, timezone, task, payload, queue, priority, max_attempts, in_code, next_at)
VALUES (%(name)s, %(cron)s, %(timezone)s, %(task)s, %(payload)s::jsonb, %(queue)s, %(priority)s, %(max_attempts)s,
        %(in_code)s, %(next_at)s)
ON CONFLICT (name) DO UPDATE
SET cron = EXCLUDED.cron, timezone = EXCLUDED.timezone, task = EXCLUDED.task, payload = EXCLUDED.payload,
    queue = EXCLUDED.queue, priority = EXCLUDED.priority, max_attempts = EXCLUDED.max_attempts,
    next_at = CASE WHEN (old.cron, old.timezone) = (EXCLUDED.cron, EXCLUDED.timezone) THEN old.next_at
                   ELSE EXCLUDED.next_at END
WHERE old.in_code = EXCLUDED.in_code
RETURNING old.next_at
