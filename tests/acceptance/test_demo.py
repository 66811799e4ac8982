"""The demo's own judgement, and its manners; `make demo` itself is the whole of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from examples.signups.app import User, read_users
from examples.signups.check import Evidence, Row, ended, errors, metric, problems, recovery
from examples.signups.faults import plan
from examples.signups.tasks import message_id
from local.smtp import Mail

ROOT = Path(__file__).parents[2]


def mail(recipient: str, job_id: int) -> Mail:
    message = EmailMessage()
    message["Message-ID"] = message_id(job_id)
    return Mail(recipient=recipient, message=message)


def row(email: str | None, job_id: int | None, **changed: Any) -> Row:
    values = {"status": "done", "tries": 1, "error": "", **changed}
    return Row(email=email, job_id=job_id, **values)


def good() -> Evidence:
    """Two users with mail, one rolled back, one whose address is refused."""
    users = [User(name=name, email=f"{name}@x.example") for name in "abcd"]
    faults = plan(users, print)
    faults.lost = 1
    refused = row("d@x.example", 4, status="failed", error="the mail server said: 550 no such user")
    return Evidence(
        faults=faults,
        signed_up={
            "a@x.example": True,
            "b@x.example": True,
            "c@x.example": False,
            "d@x.example": True,
        },
        kicks={"sent": 1, "coalesced": 0, "failed": 0},
        rows=[row("a@x.example", 1, tries=2), row("b@x.example", 2), refused],
        mails=[mail("a@x.example", 1), mail("a@x.example", 1), mail("b@x.example", 2)],
        worker_log=[],
        reaper_log=[],
    )


def rows(*changed: Row) -> Callable[[Evidence], Evidence]:
    """Put these rows in the place of those with the same job."""
    new = {one.job_id: one for one in changed}
    return lambda seen: replace(seen, rows=[new.pop(one.job_id, one) for one in seen.rows])


def test_the_time_to_recovery_is_from_the_killed_mail_to_its_second_copy() -> None:
    seen = good()
    seen.faults.kill_at, seen.faults.killed = 1, 1
    times = zip(seen.mails, (100.0, 117.5, 101.0), strict=True)
    seen = replace(seen, mails=[replace(mail, at=at) for mail, at in times])
    assert recovery(seen) == "17.5 s"
    assert recovery(replace(seen, mails=seen.mails[:1])) == "never"


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda seen: replace(seen, mails=seen.mails[:-1]), "b@x.example has mail as []"),
        (lambda seen: replace(seen, mails=[*seen.mails, mail("b@x.example", 2)]), "2 mails of 1"),
        (lambda seen: replace(seen, mails=[*seen.mails, mail("a@x.example", 7)]), "<job-7@"),
        (
            lambda seen: replace(seen, mails=[*seen.mails, mail("c@x.example", 3)]),
            "c@x.example has mail without having signed up",
        ),
        (lambda seen: replace(seen, rows=seen.rows[1:]), "a@x.example signed up and is not in"),
        (
            lambda seen: replace(seen, rows=[*seen.rows, row("c@x.example", 3)]),
            "c@x.example was rolled back and is there",
        ),
        (rows(row("b@x.example", 2, status="queued")), "job 2 for b@x.example is queued, not done"),
        (rows(row("b@x.example", 2, status="failed")), "is failed, not done"),
        (rows(row("d@x.example", 4)), "is done, not failed"),
        (rows(row("d@x.example", 4, status="failed", error="lost")), "does not say why it failed"),
        (rows(row(None, 2)), "job 2 is there without its user"),
        (
            lambda seen: replace(seen, rows=[*seen.rows, row("a@x.example", None, status=None)]),
            "a@x.example is there without a job",
        ),
        (
            lambda seen: replace(seen, faults=plan([], print)),
            "this has shown less than it should",
        ),
    ],
)
def test_the_verdict_sees_what_is_wrong(
    spoil: Callable[[Evidence], Evidence], sentence: str
) -> None:
    assert problems(good()) == []
    assert any(sentence in said for said in problems(spoil(good())))


def test_metrics_and_invocations_are_read_from_the_functions_logs() -> None:
    log = [
        "START RequestId: 1",
        '{"level":"INFO","message":"drain ended","reclaimed":5}',
        '{"_aws":{"Timestamp":1},"reclaimed":[2.0],"done":[1.0]}',
        "REPORT RequestId: 1",
        '{"_aws":{"Timestamp":1},"reclaimed":[1.0, 1.0]}',
        '{"level":"ERROR","message":"the database is down"}',
        '{"level":"ERROR","message":"the database is down"}',
        "REPORT RequestId: 2",
    ]
    assert errors(log) == ["the database is down"]
    assert (metric("reclaimed", log), metric("lost", log), ended(log)) == (4, 0, 2)


def test_a_bad_line_of_the_csv_is_named_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    path.write_text(
        "name,email\nAnn,ann@x.example\nBob\n,c@x.example\nDan,dan at x\n"
        '"Eve\nBcc: x",eve@x.example\nAnn,ANN@x.example\nZoë,zoe@x.example\n'
    )
    users, said = read_users(path)
    assert [user.name for user in users] == ["Ann", "Zoë"]
    assert [sentence.partition(" is")[0] for sentence in said] == [
        f"line {number}" for number in (3, 4, 5, 7, 8)
    ]
    assert said[-1].endswith("ANN@x.example has signed up already")


def demo(tmp_path: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.signups.demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("content", [None, "", "name,email\n", "a;b\n", "name,email\nx,nowhere\n"])
def test_a_csv_that_cannot_be_used_is_said_at_once(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "users.csv"
    if content is not None:
        path.write_text(content)
    process = demo(tmp_path, USERS=str(path))
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert said.startswith(f"demo: {path}")
    assert "Traceback" not in said


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # Postgres runs as nobody when this runs as root
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    process = demo(tmp_path)
    assert process.stdout is not None
    assert "are up" in process.stdout.readline()
    time.sleep(1)  # into the middle of a sam build
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == "demo: interrupted: every process is ended, every folder removed\n"
    assert list(tmp_path.iterdir()) == []
