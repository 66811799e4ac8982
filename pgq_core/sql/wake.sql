-- Purpose: a worker is awake: clear the pending kick, and spend the alarms that woke it. Makes a missing row.
-- Invariant: committed before the snapshot of the claim, else a job whose producer saw the mark is left behind. An
--   alarm may fire early, and its instant is by another clock: every mark up to 60 s later than that, or than now by this
--   one, is spent.
-- Locks: the queue's row, only if there is something to change, for 6 s (55P03): if it is locked that long, a kick
--   that was pending is stale by then, and nobody has noted another. Index: queues_pkey.
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', '6s', true),
           greatest(%(woken_for)s::timestamptz, CASE WHEN %(woken_for)s::timestamptz IS NOT NULL THEN clock_timestamp() END)
               + interval '60 seconds' AS spent
), made AS (
    INSERT INTO pgq_core.queues (name)
    SELECT %(queue)s
    WHERE NOT EXISTS (SELECT FROM pgq_core.queues WHERE name = %(queue)s)
      AND set_config('lock_timeout', '6s', true) IS NOT NULL
    ON CONFLICT DO NOTHING
)
UPDATE pgq_core.queues
SET kick_requested_at = NULL,
    alarm_at = CASE WHEN alarm_at <= bounded.spent THEN NULL ELSE alarm_at END
FROM bounded
WHERE name = %(queue)s AND (kick_requested_at IS NOT NULL OR alarm_at <= bounded.spent)
