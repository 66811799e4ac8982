-- Second article, "Enqueue helper"
CREATE OR REPLACE FUNCTION enqueue_job(
    _queue   TEXT,
    _payload JSONB,
    _run_at  TIMESTAMPTZ DEFAULT clock_timestamp(),
    _max_attempts INT DEFAULT 5
) RETURNS BIGINT AS $$
    INSERT INTO jobs (queue, payload, run_at, max_attempts)
    VALUES (_queue, _payload, _run_at, _max_attempts)
    RETURNING id;
$$ LANGUAGE sql;
