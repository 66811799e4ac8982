-- oldest code that may run on this schema: 1
--
-- Cron in the database: one row per schedule, the next slot in it. Whoever comes by first fires the slot, under
-- the guard `next_at = the slot`, in the statement that also enqueues its job. No process stays up for it.

CREATE TABLE pgq_core.schedules (
    name         text        PRIMARY KEY,
    cron         text        NOT NULL,
    timezone     text        NOT NULL DEFAULT 'UTC',
    task         text        NOT NULL,
    payload      jsonb       NOT NULL DEFAULT '{}',
    queue        text        NOT NULL DEFAULT 'default',
    priority     smallint    NOT NULL DEFAULT 5,
    max_attempts integer     NOT NULL DEFAULT 5,
    paused       boolean     NOT NULL DEFAULT false,
    in_code      boolean     NOT NULL DEFAULT false,  -- written by the migrate function from @tasks.cron
    next_at      timestamptz NOT NULL,
    fired_at     timestamptz,                         -- the slot fired last

    CONSTRAINT schedules_names    CHECK (length(name) BETWEEN 1 AND 200 AND length(task) BETWEEN 1 AND 200
                                         AND length(queue) BETWEEN 1 AND 200),
    CONSTRAINT schedules_cron     CHECK (length(cron) BETWEEN 1 AND 200 AND length(timezone) BETWEEN 1 AND 200),
    CONSTRAINT schedules_object   CHECK (jsonb_typeof(payload) = 'object'),
    CONSTRAINT schedules_priority CHECK (priority BETWEEN 0 AND 9),
    CONSTRAINT schedules_limit    CHECK (max_attempts BETWEEN 1 AND 1000),
    CONSTRAINT schedules_instants CHECK (
        next_at >= '2000-01-01 00:00Z' AND next_at < '3000-01-01 00:00Z'
        AND fired_at >= '2000-01-01 00:00Z' AND fired_at < '3000-01-01 00:00Z')
);

CREATE INDEX schedules_next_idx ON pgq_core.schedules (queue, next_at) WHERE NOT paused;

-- For workers that listen: one notification per queue and statement (PostgreSQL folds equal ones in a transaction).
-- The trigger that calls it is opt-in: `pgq-core notify on`.
CREATE FUNCTION pgq_core.notify() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('pgq_core', names.queue) FROM (SELECT DISTINCT added.queue FROM added) AS names;
    RETURN NULL;
END
$$;
