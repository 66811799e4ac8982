"""The variable that says how often to try is no setting of a deployment."""

import pytest


@pytest.fixture(autouse=True)
def _no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGQ_EXAMPLES", raising=False)
