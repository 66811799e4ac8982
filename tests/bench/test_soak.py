"""The soak, short: with all that is in it but crashes and restarts, whose leases take a minute."""

import pytest

from bench import soak
from local.postgres import Server, postgres


def test_a_short_soak_finds_every_job_done_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "JOBS", 400)
    monkeypatch.setattr(soak, "BULK", 100)
    monkeypatch.setattr(soak, "SAMPLE", 0.5)
    monkeypatch.setattr(soak, "REAP", 1.0)
    monkeypatch.setitem(soak.PLAN, "crash", (10_000, 9_999))
    server: Server
    with postgres() as server:
        samples, platform, wrong, _ = soak.soak(server)
    assert {name: wrong[name] for name in soak.NAMES} == dict.fromkeys(soak.NAMES, 0)
    assert samples[-1][1] >= 400
    assert "| never run | 0 |" in soak.page(samples, platform, wrong, 1)
