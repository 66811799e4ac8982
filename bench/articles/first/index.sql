-- First article, "The table"
CREATE INDEX jobs_ready_idx ON jobs (queue, run_at) WHERE status = 'queued';
