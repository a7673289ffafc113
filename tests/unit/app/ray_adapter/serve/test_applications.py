"""The end of a Serve application, and how often its client asks."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve
from ray.serve._private import client

from app.ray_adapter.serve import applications
from app.ray_adapter.serve.applications import ask_often, delete_application


class FakeServe:
    """Lists an application for some seconds after its deletion, by a clock that sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lasts_s: float) -> None:
        self.now = 100.0
        self.gone = 100.0 + lasts_s
        self.deleted: list[str] = []
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(applications, "time", clock)
        monkeypatch.setattr(serve, "delete", lambda name, _blocking: self.deleted.append(name))
        monkeypatch.setattr(serve, "status", self.status)
        client = SimpleNamespace(get_serve_details=self.details)
        monkeypatch.setattr(applications, "_get_global_client", lambda: client)
        self.killed: list[str] = []
        monkeypatch.setattr(applications, "_kill", self.killed.append)

    def sleep(self, seconds: float) -> None:
        assert seconds <= 1.0
        self.now += seconds

    @staticmethod
    def details() -> Any:
        def replicas(name: str) -> dict[str, Any]:
            states = ("RUNNING", "STARTING")
            return {"replicas": [{"state": state, "actor_name": f"{name}-{state}"} for state in states]}

        return {"applications": {name: {"deployments": {"d": replicas(name)}} for name in ("m:1", "nereid")}}

    def status(self) -> Any:
        listed = {"m:1": "DELETING"} if self.now < self.gone else {}
        return SimpleNamespace(applications={"nereid": "RUNNING", **listed})


@pytest.mark.parametrize(("lasts_s", "noticed_s"), [(0.0, 0.0), (0.05, 0.1), (0.5, 0.6), (30.0, 31.0)])
def test_deletion_is_noticed_soon(monkeypatch: pytest.MonkeyPatch, lasts_s: float, noticed_s: float) -> None:
    fake = FakeServe(monkeypatch, lasts_s)
    delete_application("m:1")
    assert fake.deleted == ["m:1"]
    assert fake.killed == ["m:1-STARTING"], "it has nothing to drain"
    assert lasts_s <= fake.now - 100 <= noticed_s + 0.05


def test_deletion_that_does_not_end_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeServe(monkeypatch, 1000)
    with pytest.raises(TimeoutError, match="application 'm:1' is not deleted after 120 s"):
        delete_application("m:1")


def test_waits_of_serves_client_ask_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CLIENT_POLLING_INTERVAL_S", 1.0)
    ask_often()
    assert vars(client)["CLIENT_POLLING_INTERVAL_S"] == 0.2
