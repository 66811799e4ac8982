"""Wake a worker now: by an asynchronous invoke, by a child process, or not at all.

A kick is a hint. It carries the name of a queue and never a job; a second one is harmless, and a
lost one costs latency: the job waits for the next commit, alarm or sweep. So whatever AWS, the
network or the operating system does, a kick does not raise: one log line says what failed and what
to do, and the answer is False.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Literal, Protocol

logger = logging.getLogger(__name__)

Service = Literal["lambda", "scheduler"]

KICK_LIMIT = 2.0  # s: what one call may cost its caller, who has just committed
WAIT = "90s"  # a child stays for what falls due soon, such as the first retries
NETWORK_FLOOR = 1.0  # s: what is left for the call when the imports before it took longer

_NO_ROUTE = "check the route to AWS: a VPC needs a NAT or an interface endpoint for this service"
_NO_CREDENTIALS = "give this process a role or AWS credentials, and check its clock"

#: What to do, by AWS error code or by the name of an exception's class or of a base of it.
REMEDIES = {
    "TimeoutError": _NO_ROUTE,
    "ConnectionError": _NO_ROUTE,
    "HTTPClientError": _NO_ROUTE,
    "NoRegionError": "set AWS_DEFAULT_REGION to the region of the stack",
    "NoCredentialsError": _NO_CREDENTIALS,
    "CredentialRetrievalError": _NO_CREDENTIALS,
    "ExpiredTokenException": _NO_CREDENTIALS,
    "UnrecognizedClientException": _NO_CREDENTIALS,
    "InvalidSignatureException": _NO_CREDENTIALS,
    "ImportError": 'pip install "pgq-core[aws]"',
}
KICK_REMEDIES = REMEDIES | {
    "ResourceNotFoundException": "check the function's name and the region (output WorkerName)",
    "AccessDeniedException": "attach the policy of the stack's output ProducerPolicyArn",
    "TooManyRequestsException": "raise the function's or the account's concurrency",
    "ParamValidationError": "give the name or the ARN of the worker function",
}


class Kick(Protocol):
    """Wake a worker for a queue."""

    def kick(self, queue: str, hop: int = 0) -> bool:
        """Ask for a worker for *queue*; True means accepted. One that raises counts as False.

        *hop*: how many hand-overs led here; only a worker that hands over passes it.
        """
        ...


class NoKick:
    """Wake nobody: the job waits for the next kick, alarm or sweep."""

    def kick(self, queue: str, hop: int = 0) -> bool:  # noqa: ARG002 - the protocol's names
        """Accept nothing."""
        return False


class LambdaKick:
    """Wake the worker function *name* (a name or an ARN, with or without a qualifier).

    The client is made by the first kick, once per process. *client*: a boto3 Lambda client to use
    instead; its time-outs and its life across a fork are then the caller's.
    """

    def __init__(self, name: str, *, client: object = None) -> None:
        self._name = name
        self._lambda = AwsClient("lambda", client)

    def kick(self, queue: str, hop: int = 0) -> bool:
        """Invoke the worker asynchronously; True means that Lambda has queued the event.

        Takes 2 s at most; the first one of a process may need longer to import boto3 (`warm`).
        """
        event = {"queue": queue, "hop": hop} if hop else {"queue": queue}
        return self._invoke("Event", Payload=json.dumps(event).encode())

    def warm(self) -> bool:
        """Import boto3, make the client and open its connection; True if the worker can be kicked.

        This is a dry run of the invoke: it starts and costs nothing, needs no permission but the
        one a kick needs, and finds a wrong name or a missing permission before the first commit.
        """
        return self._invoke("DryRun")

    def _invoke(self, kind: str, **payload: bytes) -> bool:
        error = self._lambda.failure(
            "invoke", FunctionName=self._name, InvocationType=kind, **payload
        )
        if error is not None:
            log_failure("kick", self._name, error, KICK_REMEDIES)
        return error is None


class LocalKick:
    """Wake a worker in a child process: development and tests without AWS.

    *tasks*: "module:attribute", found from the working directory. *env*: the child's whole
    environment, None for this process's own; it names the database by DATABASE_URL or PG*, so an
    application that gets its DSN elsewhere passes `{**os.environ, "DATABASE_URL": dsn}` (a command
    line would show the password to every user of the machine).
    """

    def __init__(self, tasks: str, *, env: Mapping[str, str] | None = None) -> None:
        self._tasks = tasks
        self._env = env

    def kick(self, queue: str, hop: int = 0) -> bool:  # noqa: ARG002 - no deadline, no hand-over
        """Start `pgq-core worker --once` for *queue*; True means that the process has started."""
        command = [sys.executable, "-m", "pgq_core", "worker", "--once"]
        try:
            child = subprocess.Popen(  # noqa: S603 - no shell, and the caller's own names
                [*command, f"--wait={WAIT}", f"--queue={queue}", f"--tasks={self._tasks}"],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=2,  # the caller's own stdout may be data
                start_new_session=True,  # Ctrl-C in the application leaves the job alone
            )
        except OSError as error:
            log_failure("kick", sys.executable, error, {})
            return False
        threading.Thread(target=child.wait, daemon=True).start()  # or it would stay as a zombie
        return True


class AwsClient:
    """One AWS client: made when first used, once per process; its calls end in time.

    One attempt, for a caller waits. botocore's time-outs bound each address and each read, but not
    the resolver, a chain of credentials or an answer that drips; a thread and a clock bound the
    rest. What has not come by then may still arrive: to a kick or an alarm that is harmless.
    """

    def __init__(self, service: Service, given: object = None) -> None:
        self._service = service
        self._given = given
        self._made: object = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def failure(self, operation: str, **parameters: object) -> BaseException | None:
        """Call *operation*; return what went wrong, or None."""
        started = time.monotonic()
        try:
            call = partial(getattr(self._client(), operation), **parameters)
        except Exception as error:  # noqa: BLE001 - no boto3, no region, no profile: the caller logs it
            return error
        left = KICK_LIMIT - (time.monotonic() - started)
        return _bounded(partial(_read, call), max(left, NETWORK_FLOOR))

    def _client(self) -> object:
        if self._given is not None:
            return self._given
        # Neither sockets nor a lock that another thread held may cross a fork.
        if self._pid != os.getpid():
            self._lock, self._made, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._made is None:
                self._made = _make(self._service)
            return self._made


def _make(service: Service) -> object:
    """Make a client that tries once, from a session of its own: sessions are not thread-safe."""
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client(
        service,
        config=Config(
            connect_timeout=0.5,
            read_timeout=1.2,
            retries={"total_max_attempts": 1, "mode": "standard"},
            tcp_keepalive=True,
        ),
    )


def _read(call: Callable[[], object]) -> None:
    """Call and read the answer's body: one left unread costs the connection and the next TLS."""
    answer = call()
    body = answer.get("Payload") if isinstance(answer, dict) else None
    if body is not None:
        body.read()


def _bounded(call: Callable[[], object], seconds: float) -> BaseException | None:
    """Run *call* in a thread for at most *seconds*; return what it raised, or None."""
    answer: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - handed to the waiting caller
            answer.set_exception(error)
        else:
            answer.set_result(None)

    try:
        threading.Thread(target=run, daemon=True).start()
        return answer.exception(seconds)
    except TimeoutError:
        return TimeoutError(f"no answer within {seconds:.1f} s")
    except RuntimeError as error:  # no more threads: the limit is reached, or Python is ending
        return error


def error_code(error: BaseException) -> str:
    """Return the AWS error code of *error*, or the name of its class."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", type(error).__name__))


def log_failure(what: str, target: str, error: BaseException, remedies: Mapping[str, str]) -> None:
    """Log in one line that *what* did not reach *target*, why, and what to do."""
    names = [error_code(error), *(base.__name__ for base in type(error).__mro__)]
    remedy = next(
        (remedies[name] for name in names if name in remedies), "the sweep makes up for it"
    )
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    logger.warning("%s not sent to %s: %s; %s", what, target, reason, remedy)
