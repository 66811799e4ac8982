-- Second article, "Push instead of poll: LISTEN/NOTIFY"
CREATE TRIGGER trg_job_insert
AFTER INSERT ON jobs
FOR EACH ROW
WHEN (NEW.status = 'pending')
EXECUTE FUNCTION notify_job_insert();
