"""The worker's side: the handlers, which the stack's parameter TasksModule names."""

import os
import smtplib
from datetime import timedelta
from email.headerregistry import Address
from email.message import EmailMessage
from urllib.parse import urlsplit

from pgq_core import Context, Discard, Job, Retry, Tasks

tasks = Tasks()

DOMAIN = "signups.example"
NEVER = 500  # the SMTP replies from here on are refusals for good (RFC 5321, 4.2.1)


def soon(attempt: int) -> timedelta:
    """Wait 2 s after the first failure, 4 s after the second: it is never busy for long."""
    return timedelta(seconds=2 * attempt)


@tasks.handler("send_welcome", timeout=timedelta(seconds=5), backoff=soon)
def send_welcome(job: Job, ctx: Context) -> None:
    """Send the welcome mail to whom the payload names."""
    try:
        send(welcome(job), ctx.time_left())
    except (smtplib.SMTPRecipientsRefused, smtplib.SMTPResponseException) as error:
        code, text = reply(error)
        answer = f"the mail server said: {code} {text}"
        raise (Discard(answer) if code >= NEVER else Retry(answer)) from error


def message_id(job_id: int) -> str:
    """Name a job's mail: the same at each attempt, so that two copies can be told to be one."""
    return f"<job-{job_id}@{DOMAIN}>"


def welcome(job: Job) -> EmailMessage:
    """Write the mail."""
    name, email = job.payload["name"], job.payload["email"]
    message = EmailMessage()
    message["Message-ID"] = message_id(job.id)
    message["From"] = Address("Sign-ups", "hello", DOMAIN)
    message["To"] = Address(name, addr_spec=email)
    message["Subject"] = "Welcome"
    message.set_content(f"Hello {name},\n\ngood to have you here.\n")
    return message


def send(message: EmailMessage, patience: timedelta) -> None:
    """Hand the mail to the server that the stack's parameter AppSettings names: smtp://host:port."""
    server = urlsplit(os.environ["APP_SETTINGS"])
    with smtplib.SMTP(
        server.hostname or "", server.port or 25, DOMAIN, timeout=patience.total_seconds()
    ) as smtp:
        smtp.send_message(message)


def reply(error: smtplib.SMTPRecipientsRefused | smtplib.SMTPResponseException) -> tuple[int, str]:
    """Return what the mail server answered."""
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error
        return error.smtp_code, text if isinstance(text, str) else text.decode(errors="replace")
    [(code, answer)] = error.recipients.values()
    return code, answer.decode(errors="replace")
