"""Every test of this folder runs both ways: by plans, and as requests that need more than a plan."""

import pytest

from app.ensemble.compiled import CompiledEnsemble


@pytest.fixture(autouse=True, params=["planned", "general"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way: `general` is without plans."""
    if request.param == "general":
        monkeypatch.setattr(CompiledEnsemble, "plan_for", lambda *_: None)
    return str(request.param)
