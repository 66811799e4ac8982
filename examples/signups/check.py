"""What must be true in the end, and the figures: pure functions of what was found."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from local.smtp import Mail

from .faults import Faults
from .tasks import message_id


@dataclass(frozen=True, kw_only=True)
class Row:
    """Be one user and the job for the welcome mail, of which either may be missing."""

    email: str | None
    job_id: int | None
    status: str | None
    tries: int
    error: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Hold what the application, the database, the mail server and the functions say."""

    faults: Faults
    signed_up: Mapping[str, bool]  # by address: whether the sign-up was committed
    kicks: Mapping[str, int]
    rows: Sequence[Row]
    mails: Sequence[Mail]
    worker_log: Sequence[str]
    reaper_log: Sequence[str]

    def delivered(self) -> dict[str, Counter[str]]:
        """Count the mails by recipient and Message-ID."""
        counted: dict[str, Counter[str]] = {}
        for mail in self.mails:
            counted.setdefault(mail.recipient, Counter())[mail.message_id] += 1
        return counted


def problems(seen: Evidence) -> list[str]:
    """Say in a sentence each what is not as it must be; nothing if all is well."""
    known, delivered = {row.email for row in seen.rows}, seen.delivered()
    said = [
        f"{email} signed up and is not in the database"
        for email, committed in seen.signed_up.items()
        if committed and email not in known
    ]
    said += [f"{email} has mail without having signed up" for email in delivered.keys() - known]
    for row in seen.rows:
        mails = delivered.get(row.email or "", Counter())
        said += [wrong_signup(row, seen), wrong_end(row, seen), wrong_mail(row, mails)]
    if not seen.faults.lost or (seen.faults.kill_at and not seen.faults.killed):
        said.append("no worker was killed or no kick was lost: this has shown less than it should")
    return [sentence for sentence in said if sentence]


def wrong_signup(row: Row, seen: Evidence) -> str:
    """Say what is wrong with a sign-up: user and job are both there, or neither is."""
    if row.email is None:
        return f"job {row.job_id} is there without its user"
    if row.job_id is None:
        return f"{row.email} is there without a job"
    if not seen.signed_up.get(row.email):
        return f"{row.email} was rolled back and is there"
    return ""


def wrong_end(row: Row, seen: Evidence) -> str:
    """Say what is wrong with the end of a job: done, or failed where there is no such mailbox."""
    wanted = "failed" if row.email in seen.faults.unknown else "done"
    if row.job_id is not None and row.status != wanted:
        return f"job {row.job_id} for {row.email} is {row.status}, not {wanted}: {row.error}"
    if wanted == "failed" and "550" not in row.error:
        return f"job {row.job_id} for {row.email} does not say why it failed, but: {row.error}"
    return ""


def wrong_mail(row: Row, mails: Counter[str]) -> str:
    """Say what is wrong with the mail of a job at its end: one Message-ID, no more than tries."""
    if row.status not in ("done", "failed"):
        return ""
    wanted = {message_id(row.job_id or 0)} if row.status == "done" else set()
    if set(mails) != wanted:
        return f"{row.email} has mail as {sorted(mails)}, not as {sorted(wanted)}"
    if mails.total() > row.tries:
        return f"{row.email} has {mails.total()} mails of {row.tries} tries"
    return ""


def figures(seen: Evidence) -> list[tuple[str, str, str]]:
    """Return name, figure and source of what the table shows."""
    states = Counter(row.status for row in seen.rows if row.job_id is not None)
    committed = sum(seen.signed_up.values())
    reclaimed = metric("reclaimed", [*seen.worker_log, *seen.reaper_log])
    again = max(0, sum(max(row.tries - 1, 0) for row in seen.rows) - reclaimed)
    mails, names = len(seen.mails), len({mail.message_id for mail in seen.mails})
    kicks, faults = seen.kicks, seen.faults
    return [
        ("signed up", f"{committed}", "application"),
        (
            f"rolled back ({len(faults.declined)} on purpose)",
            f"{len(seen.signed_up) - committed}",
            "application",
        ),
        ("jobs enqueued", f"{states.total()}", "database"),
        ("done", f"{states['done']}", "database"),
        (f"failed ({len(faults.unknown)} on purpose)", f"{states['failed']}", "database"),
        ("retried after a failure", f"{again}", "database"),
        ("reclaimed after a crash", f"{reclaimed}", "metrics in the functions' logs"),
        ("started again after the crash", recovery(seen), "mail server"),
        (f"kicks sent ({faults.lost} lost)", f"{kicks['sent']}", "application"),
        ("kicks coalesced", f"{kicks['coalesced']}", "application"),
        ("kicks failed", f"{kicks['failed']}", "application"),
        (f"invocations ({faults.killed} killed)", f"{ended(seen.worker_log)}", "worker's log"),
        ("mails", f"{mails}", "mail server"),
        ("delivered twice, for a crash", f"{mails - names}", "mail server"),
    ]


def recovery(seen: Evidence) -> str:
    """Say how long after the kill its job was at the mail server again."""
    if not seen.faults.killed:
        return "-"
    first = seen.mails[seen.faults.kill_at - 1]
    again = (
        mail for mail in seen.mails if mail.message_id == first.message_id and mail is not first
    )
    return next((f"{mail.at - first.at:.1f} s" for mail in again), "never")


def ended(log: Sequence[str]) -> int:
    """Count the invocations that have ended, however they did."""
    return sum(line.startswith("REPORT ") for line in log)


def errors(log: Sequence[str]) -> list[str]:
    """Return what the functions have logged as errors, each sentence once."""
    lines = [json.loads(line) for line in log if line.startswith('{"level":"ERROR"')]
    return list(dict.fromkeys(str(line["message"]) for line in lines))


def metric(name: str, log: Sequence[str]) -> int:
    """Add up a metric that the functions have printed."""
    printed = [json.loads(line) for line in log if '"_aws":' in line]
    return sum(int(value) for one in printed for value in one.get(name, ()))
