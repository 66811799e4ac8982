-- Second article, "A working job queue in ~40 lines of SQL"
CREATE TABLE jobs (
    id          BIGSERIAL PRIMARY KEY,
    queue       TEXT        NOT NULL DEFAULT 'default',
    payload     JSONB       NOT NULL,
    status      TEXT        NOT NULL DEFAULT 'pending'
                CHECK (status IN ('pending','processing','failed','completed')),
    run_at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    locked_at   TIMESTAMPTZ,
    attempts    INT         NOT NULL DEFAULT 0,
    max_attempts INT        NOT NULL DEFAULT 5,
    created_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
