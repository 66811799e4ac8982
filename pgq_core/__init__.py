"""A Postgres job queue for serverless applications, woken by kicks: the public names."""

from . import errors
from .alarm import Alarm, NoAlarm, SchedulerAlarm
from .config import Settings
from .context import Context
from .enqueue import enqueue, enqueue_many
from .job import Enqueued, Job, NewJob
from .kick import Kick, LambdaKick, LocalKick, NoKick
from .migrate import migrate
from .outcome import Discard, Retry, Snooze
from .producer import Producer
from .tasks import Tasks
from .worker import DrainReport, work

__all__ = [
    "Alarm",
    "Context",
    "Discard",
    "DrainReport",
    "Enqueued",
    "Job",
    "Kick",
    "LambdaKick",
    "LocalKick",
    "NewJob",
    "NoAlarm",
    "NoKick",
    "Producer",
    "Retry",
    "SchedulerAlarm",
    "Settings",
    "Snooze",
    "Tasks",
    "enqueue",
    "enqueue_many",
    "errors",
    "migrate",
    "work",
]
