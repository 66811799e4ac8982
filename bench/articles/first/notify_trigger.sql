-- First article, "Waking workers: polling or LISTEN/NOTIFY"
CREATE TRIGGER jobs_notify
AFTER INSERT ON jobs
FOR EACH ROW EXECUTE FUNCTION jobs_notify();
