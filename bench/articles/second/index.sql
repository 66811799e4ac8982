-- Second article, "A working job queue in ~40 lines of SQL"
CREATE INDEX idx_jobs_dequeue ON jobs (queue, status, run_at)
    WHERE status = 'pending';
