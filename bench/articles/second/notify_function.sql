-- Second article, "Push instead of poll: LISTEN/NOTIFY"
CREATE OR REPLACE FUNCTION notify_job_insert()
RETURNS trigger AS $$
BEGIN
    PERFORM pg_notify('job_channel', NEW.id::text);
    RETURN NEW;
END;
$$ LANGUAGE plpgsql;
