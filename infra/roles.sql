-- Three roles with only what they need; run it after `pgq-core migrate`, as the role that owns the schema and may
-- create roles: psql "$DATABASE_URL" -f infra/roles.sql. It can be run again, and must be after a migration.
-- Nobody logs in as one of them: GRANT pgq_producer TO shop. The functions' user is given pgq_worker and pgq_reaper;
-- whoever migrates, switches notifications on or edits schedules by hand owns the schema.
DO $$
DECLARE
    missing text;
BEGIN
    FOREACH missing IN ARRAY ARRAY['pgq_producer', 'pgq_worker', 'pgq_reaper'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = missing) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', missing);
        END IF;
    END LOOP;
END
$$;

GRANT USAGE ON SCHEMA pgq_core TO pgq_producer, pgq_worker, pgq_reaper;
-- Do schema and code fit?
GRANT SELECT ON pgq_core.migrations TO pgq_producer, pgq_worker, pgq_reaper;
-- The two marks, and the row they are in.
GRANT SELECT, INSERT (name) ON pgq_core.queues TO pgq_producer, pgq_worker, pgq_reaper;
GRANT INSERT (kick_requested_at), UPDATE (kick_requested_at) ON pgq_core.queues TO pgq_producer, pgq_worker;
GRANT INSERT (alarm_at), UPDATE (alarm_at) ON pgq_core.queues TO pgq_worker, pgq_reaper;

-- Enqueues; sees which key is taken and when a job is due, and no payload but those it writes.
GRANT INSERT (id, task, payload, queue, run_at, priority, max_attempts, unique_key, headers) ON pgq_core.jobs
    TO pgq_producer, pgq_worker;
GRANT SELECT (id, queue, status, unique_key, run_at) ON pgq_core.jobs TO pgq_producer;
GRANT USAGE ON SEQUENCE pgq_core.jobs_id_seq TO pgq_producer, pgq_worker;

-- Claims and settles; fires cron slots, and pauses a schedule that cannot fire. Its handlers may enqueue.
GRANT SELECT, UPDATE ON pgq_core.jobs TO pgq_worker;
GRANT SELECT, UPDATE (next_at, fired_at, paused) ON pgq_core.schedules TO pgq_worker;

-- Reclaims, cleans up, archives.
GRANT SELECT, UPDATE, DELETE ON pgq_core.jobs TO pgq_reaper;
GRANT INSERT ON pgq_core.jobs_archive TO pgq_reaper;
GRANT SELECT ON pgq_core.schedules TO pgq_reaper;
