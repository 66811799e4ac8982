-- Second article, "Dequeue: one statement, no polling"
WITH next_job AS (
    SELECT j.id
    FROM jobs j
    WHERE j.queue   = 'default'
      AND j.status  = 'pending'
      AND j.run_at <= clock_timestamp()
    ORDER BY j.run_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
UPDATE jobs j
SET status    = 'processing',
    locked_at = clock_timestamp(),
    attempts  = attempts + 1,
    updated_at = clock_timestamp()
FROM next_job nj
WHERE j.id = nj.id
RETURNING j.*;
