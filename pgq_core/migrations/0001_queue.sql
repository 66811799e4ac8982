-- oldest code that may run on this schema: 1
--
-- The queue of the first article: its columns, states and CHECK, made fit for priorities, fenced replays,
-- crash isolation and wake-ups. Everything lives in the schema pgq_core (the extension PgQ owns the name pgq)
-- and is always written with it, so that no search_path matters.

CREATE SCHEMA pgq_core;

-- The ledger. `oldest_code` is the newest migration that the oldest code allowed to run here must know.
CREATE TABLE pgq_core.migrations (
    name        text        PRIMARY KEY,
    checksum    text        NOT NULL,
    oldest_code integer     NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE pgq_core.jobs (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue         text        NOT NULL DEFAULT 'default',
    task          text        NOT NULL,
    payload       jsonb       NOT NULL DEFAULT '{}',
    headers       jsonb       NOT NULL DEFAULT '{}',
    status        text        NOT NULL DEFAULT 'queued',
    priority      smallint    NOT NULL DEFAULT 5,
    run_at        timestamptz NOT NULL DEFAULT now(),
    attempts      integer     NOT NULL DEFAULT 0,  -- claims so far; only grows: the fence
    released      integer     NOT NULL DEFAULT 0,  -- claims not held against max_attempts
    max_attempts  integer     NOT NULL DEFAULT 5,
    crashed       integer     NOT NULL DEFAULT 0,  -- expired leases in a row; such a job runs alone
    settled       integer     NOT NULL DEFAULT 0,  -- the claim last settled by its own worker
    settled_as    text,                            -- and by which write: a repeated one is known by both
    locked_until  timestamptz,                     -- the lease
    locked_by     text,                            -- the invocation that holds it
    unique_key    text,
    unknown_since timestamptz,                     -- since when no worker has known the task
    last_error    text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    finished_at   timestamptz,

    CONSTRAINT jobs_status   CHECK (status IN ('queued', 'running', 'done', 'failed', 'cancelled')),
    CONSTRAINT jobs_names    CHECK (length(queue) BETWEEN 1 AND 200 AND length(task) BETWEEN 1 AND 200),
    CONSTRAINT jobs_key      CHECK (length(unique_key) BETWEEN 1 AND 400),
    CONSTRAINT jobs_worker   CHECK (length(locked_by) <= 200),
    CONSTRAINT jobs_objects  CHECK (jsonb_typeof(payload) = 'object' AND jsonb_typeof(headers) = 'object'),
    CONSTRAINT jobs_priority CHECK (priority BETWEEN 0 AND 9),
    CONSTRAINT jobs_limit    CHECK (max_attempts BETWEEN 1 AND 1000),
    -- An upper bound, so that counting on never overflows and stops the queue.
    CONSTRAINT jobs_counts   CHECK (attempts BETWEEN 0 AND 1000000000 AND released BETWEEN 0 AND attempts
                                    AND crashed BETWEEN 0 AND attempts AND settled BETWEEN 0 AND attempts),
    -- A lease without an end would never be reclaimed.
    CONSTRAINT jobs_lease    CHECK (status <> 'running' OR locked_until IS NOT NULL),
    -- No infinity and no absurd date: clients cannot read the first, and the second is never due.
    CONSTRAINT jobs_instants CHECK (
        run_at >= '2000-01-01 00:00Z' AND run_at < '3000-01-01 00:00Z'
        AND created_at >= '2000-01-01 00:00Z' AND created_at < '3000-01-01 00:00Z'
        AND locked_until >= '2000-01-01 00:00Z' AND locked_until < '3000-01-01 00:00Z'
        AND unknown_since >= '2000-01-01 00:00Z' AND unknown_since < '3000-01-01 00:00Z'
        AND finished_at >= '2000-01-01 00:00Z' AND finished_at < '3000-01-01 00:00Z')
) WITH (
    -- Each job is written three times or more, and no version can be HOT (status is in every index), so dead
    -- rows come with the traffic, not with the size of the history: vacuum by their number.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 5000,
    -- Room on the page for the next version of the row keeps a job's life on one page.
    fillfactor = 80
);

-- The claim: one probe per priority, in the order of run_at, whatever else waits in the future.
CREATE INDEX jobs_ready_idx ON pgq_core.jobs (queue, priority, run_at, id) WHERE status = 'queued';

-- The leases: reclaim, the cap on workers, the next instant. The predicate asks for locked_until as well, so
-- that no fence (which does not) can be planned through this index of dead entries: 3-5k instead of 9-12k jobs/s.
CREATE INDEX jobs_lease_idx ON pgq_core.jobs (queue, locked_until)
    WHERE status = 'running' AND locked_until IS NOT NULL;

-- Rows that no claim takes, because no attempt is left (only plain SQL makes them): nearly always empty.
CREATE INDEX jobs_spent_idx ON pgq_core.jobs (id) WHERE status = 'queued' AND attempts - released >= max_attempts;

-- The history, oldest first: cleanup and the count of failures. Plain SQL may have left finished_at out.
CREATE INDEX jobs_finished_idx ON pgq_core.jobs (status, coalesce(finished_at, created_at)) INCLUDE (queue)
    WHERE status IN ('done', 'failed', 'cancelled');

-- One unfinished job per queue and key.
CREATE UNIQUE INDEX jobs_unique_idx ON pgq_core.jobs (queue, unique_key)
    WHERE unique_key IS NOT NULL AND status IN ('queued', 'running');

-- Finished jobs that cleanup kept: the same columns, no index but the key, no constraint to trip over.
CREATE TABLE pgq_core.jobs_archive (LIKE pgq_core.jobs);
ALTER TABLE pgq_core.jobs_archive ADD PRIMARY KEY (id), ADD COLUMN archived_at timestamptz NOT NULL DEFAULT now();

-- One row per queue that somebody woke or set up: its settings and its two marks.
CREATE TABLE pgq_core.queues (
    name              text        PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    paused            boolean     NOT NULL DEFAULT false,
    max_workers       integer     NOT NULL DEFAULT 10 CHECK (max_workers BETWEEN 1 AND 1000),
    kick_requested_at timestamptz,  -- null = no kick is pending
    alarm_at          timestamptz   -- the earliest noted alarm
) WITH (
    -- A hot row of a tiny table: room for its versions on the page keeps its updates HOT.
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500
);

-- The public entry for triggers and other languages, and the one that Python uses: in the caller's transaction.
-- On a conflict of the key DO NOTHING and then a select, never DO UPDATE, which would lock the running row.
-- The loop ends: when the select finds nothing, the other job has finished and the key is free.
CREATE FUNCTION pgq_core.enqueue(
    task         text,
    payload      jsonb       DEFAULT '{}',
    queue        text        DEFAULT 'default',
    run_at       timestamptz DEFAULT NULL,
    delay        interval    DEFAULT NULL,
    priority     integer     DEFAULT 5,
    max_attempts integer     DEFAULT 5,
    unique_key   text        DEFAULT NULL,
    headers      jsonb       DEFAULT '{}',
    OUT id bigint,
    OUT inserted boolean
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    IF enqueue.run_at IS NOT NULL AND enqueue.delay IS NOT NULL THEN
        RAISE EXCEPTION 'give run_at or delay, not both' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF enqueue.delay < interval '0' OR enqueue.delay > interval '3650 days' THEN
        RAISE EXCEPTION 'delay: 0 to 3650 days is allowed, not %', enqueue.delay
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR try IN 1..100 LOOP  -- again if the holder of the key ended in between
        INSERT INTO pgq_core.jobs AS new
               (task, payload, queue, run_at, priority, max_attempts, unique_key, headers)
        VALUES (enqueue.task, enqueue.payload, enqueue.queue,
                CASE WHEN enqueue.delay IS NULL THEN coalesce(enqueue.run_at, now())
                     ELSE clock_timestamp() + greatest(enqueue.delay, interval '1 second') END,
                enqueue.priority, enqueue.max_attempts, enqueue.unique_key, coalesce(enqueue.headers, '{}'))
        ON CONFLICT (queue, unique_key) WHERE unique_key IS NOT NULL AND status IN ('queued', 'running')
        DO NOTHING
        RETURNING new.id INTO enqueue.id;
        enqueue.inserted := FOUND;
        IF FOUND THEN RETURN; END IF;
        SELECT old.id INTO enqueue.id
        FROM pgq_core.jobs AS old
        WHERE old.queue = enqueue.queue AND old.unique_key = enqueue.unique_key
          AND old.status IN ('queued', 'running');
        IF FOUND THEN RETURN; END IF;
    END LOOP;
    RAISE EXCEPTION 'the job is not in: a trigger on pgq_core.jobs keeps it out, or row security hides who holds its key';
END
$$;
