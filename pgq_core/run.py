"""Run one handler under its timeout, and bring back whatever comes of it as a value."""

import logging
import os
import signal
import threading
import traceback
from collections.abc import AsyncGenerator, Coroutine, Generator

from .context import Context
from .errors import JobTimeout
from .job import Job
from .outcome import Discard, Retry, Snooze, describe
from .tasks import Task

logger = logging.getLogger(__name__)

FORKED = 70  # the exit code of such a child
_FACTS = ("task", "attempt", "max_attempts")
LONGEST_TRACE = 32_000  # characters of a log record
AGAIN = 1.0  # s: a handler that swallowed its JobTimeout gets the next one then


def run(task: Task, job: Job, ctx: Context) -> object:
    """Run the handler and return its answer, or what it raised; None is success.

    Only `KeyboardInterrupt` passes: it means the worker, not the job.
    """
    pid = os.getpid()
    try:
        return _answer(_call(task, job, ctx))
    except KeyboardInterrupt:
        raise
    except (Retry, Snooze, Discard) as answer:
        return answer
    except BaseException as error:  # noqa: BLE001 - recorded in the job; SystemExit ends a job only
        _log(job, error)
        return error
    finally:
        if os.getpid() != pid:  # the handler forked, and its child must not become a second worker
            os._exit(FORKED)


def _log(job: Job, error: BaseException) -> None:
    facts: dict[str, object] = {name: getattr(job, name) for name in _FACTS} | {"job_id": job.id}
    if _is_readable(error):
        logger.warning("handler raised", exc_info=error, extra=facts)
    else:
        logger.warning("handler raised", extra=facts | {"error": describe(error)})


def _is_readable(error: BaseException) -> bool:
    """Tell whether its traceback can be made (a user's error may forbid it) and fits a record."""
    try:  # its text, and those of what it came from and of its notes
        return sum(map(len, traceback.format_exception(error))) < LONGEST_TRACE
    except Exception:  # noqa: BLE001 - whatever it is, the job's record says what it can
        return False


def _call(task: Task, job: Job, ctx: Context) -> object:
    """Call the handler, bounded by SIGALRM; outside of the main thread only the lease bounds it."""
    arguments = (job, ctx) if task.wants_context else (job,)
    if threading.current_thread() is not threading.main_thread():
        return task.handler(*arguments)
    seconds, in_force = task.timeout.total_seconds(), True

    def strike(_signal: int, _frame: object) -> None:
        if in_force:
            raise JobTimeout(f"the handler ran longer than its timeout of {seconds:g} s")

    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        try:
            return task.handler(*arguments)
        finally:
            in_force = False  # strikes here at the latest; then the outer block still disarms
    finally:
        in_force = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        if before is not None:  # None: it was not set from Python, and cannot be put back
            signal.signal(signal.SIGALRM, before)


def _answer(value: object) -> object:
    if isinstance(value, Coroutine | Generator | AsyncGenerator):
        return TypeError(f"the handler returned a {type(value).__name__} that nobody runs")
    return value if isinstance(value, Retry | Snooze | Discard) else None
