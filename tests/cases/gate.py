"""A gate for statements: an advisory lock at which a policy or a trigger lets them wait."""

SHUT, OPEN = "SELECT pg_advisory_lock(1)", "SELECT pg_advisory_unlock(1)"
WAIT = "PERFORM pg_advisory_lock_shared(1); PERFORM pg_advisory_unlock_shared(1);"


def trigger(event: str, condition: str) -> bytes:
    """Return what makes the statement wait that is about to write a row of *condition*."""
    return f"""
        CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {WAIT} RETURN NEW; END';
        CREATE TRIGGER gate BEFORE {event} ON pgq_core.jobs FOR EACH ROW WHEN ({condition})
            EXECUTE FUNCTION gate()""".encode()
