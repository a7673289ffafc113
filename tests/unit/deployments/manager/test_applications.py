"""Names of Serve applications, and what the list of them tells."""

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.manager import applications
from deployments.manager.applications import Found, application_name, base_name, parse_application

NAMES = [
    (("simple", 1, 1), "simple:1"),
    (("simple", 12, 3), "simple:12@3"),
    (("a:b", 0, 1), "a:b:0"),
    (("x:5@2", 7, 4), "x:5@2:7@4"),
    (("größe", 9_223_372_036_854_775_807, 2), "größe:9223372036854775807@2"),
]


@pytest.mark.parametrize(("parts", "name"), NAMES)
def test_names(parts: tuple[str, int, int], name: str) -> None:
    model, version, generation = parts
    base = base_name(model, version)
    assert application_name(base, generation) == name
    assert Found(*parts, name, True).base == base
    assert parse_application(name) == parts


def test_a_namespace_tells_applications_apart() -> None:
    bases = [base_name(model, 1) for model in ("/a/b::simple", "/a/c::simple", "simple")]
    assert len(set(bases)) == 3
    for base in bases:
        assert "/" not in base
        assert parse_application(application_name(base, 2)) == ("simple", 1, 2)


@pytest.mark.parametrize(
    "name", ["nereid", "default", "simple", ":1", "simple:", "simple:x", "simple:1@", "a:1@x"]
)
def test_names_of_others(name: str) -> None:
    assert parse_application(name) is None


def serve_status(monkeypatch: pytest.MonkeyPatch, **found: tuple[str, dict[str, Any]]) -> None:
    listed = {
        name: SimpleNamespace(status=status, deployments=deployments)
        for name, (status, deployments) in found.items()
    }
    monkeypatch.setattr(applications.serve, "status", lambda: SimpleNamespace(applications=listed))


async def test_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_status(
        monkeypatch,
        **{
            "nereid": ("RUNNING", {"ingress": None, "repository-manager": None}),
            "m:1": ("RUNNING", {"m": None}),
            "m:1@2": ("DEPLOYING", {"m": None}),
            "m:2": ("UNHEALTHY", {"m": None}),
            "m:3": ("DEPLOY_FAILED", {"m": None}),
            "m:4": ("DELETING", {}),
            "other:1": ("RUNNING", {"somebody": None, "else": None}),
        },
    )
    assert await applications.listed() == [
        Found("m", 1, 1, "m:1", True),
        Found("m", 1, 2, "m:1@2", True),
        Found("m", 2, 1, "m:2", True),
        Found("m", 3, 1, "m:3", False),
        Found("m", 4, 1, "m:4", False),
    ]


async def test_running_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    states = SimpleNamespace(replica_states={"RUNNING": 2, "STARTING": 1})
    none = SimpleNamespace(replica_states={})
    serve_status(monkeypatch, nereid=("RUNNING", {"ingress": states, "idle": none}))
    assert await applications.running_replicas("nereid", "ingress") == 2
    assert await applications.running_replicas("nereid", "idle") == 0
    assert await applications.running_replicas("nereid", "gone") == 0
    assert await applications.running_replicas("gone", "ingress") == 0


async def test_failing_delete_is_not_the_callers_matter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def delete(name: str) -> None:
        raise TimeoutError("not deleted after 60s")

    monkeypatch.setattr(applications.serve, "delete", delete)
    await applications.delete("m:1")
    assert "deleting application 'm:1'" in caplog.text
