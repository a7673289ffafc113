"""The console's server: whom it refuses, what it sends on, and what its pages are told."""

import json
from collections.abc import Iterator

import pytest

from app.console.server import Place
from tests.unit.app.console.conftest import Consoles
from tests.unit.app.console.running_console import RunningConsole, guard_of_tokens

INFER = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
).encode()
ACTIONS = {
    "load": ("POST", "/v2/repository/models/identity/load", b"{}"),
    "unload": ("POST", "/v2/repository/models/identity/unload", b"{}"),
    "index": ("POST", "/v2/repository/index", b""),
    "rollout": ("POST", "/v2/models/identity/rollout", b'{"action": "abort"}'),
    "drift": ("GET", "/v2/models/identity/drift", None),
    "log": ("POST", "/v2/logging", b'{"log_verbose_level": 1}'),
    "trace": ("POST", "/v2/trace/setting", b'{"trace_rate": "5"}'),
    "lines": ("GET", "/v2/nereid/logs", None),
    "traces": ("GET", "/v2/nereid/traces", None),
    "settings": ("GET", "/v2/nereid/server", None),
    "memory": ("GET", "/v2/systemsharedmemory/status", None),
}
"""What pages do or read that needs the scope `manage`."""
OPEN = {
    "live": ("GET", "/console/live?since=", None),
    "history": ("GET", "/console/history?span=10", None),
    "events": ("GET", "/console/events", None),
}
INFERENCE = ("POST", "/v2/models/identity/infer", INFER)


@pytest.fixture
def guarded(consoles: Consoles) -> Iterator[RunningConsole]:
    with consoles(guard=guard_of_tokens()) as running:
        yield running


@pytest.mark.parametrize("action", [*ACTIONS, *OPEN, "infer", "page"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8003", "Origin": "http://evil.example:8003"},
    ],
)
def test_other_origins_and_hosts_are_refused(
    console: RunningConsole, action: str, headers: dict[str, str]
) -> None:
    every = {**ACTIONS, **OPEN, "infer": INFERENCE, "page": ("GET", "/", None)}
    answer = console.ask(*every[action], **headers)
    assert answer.status == 403
    assert console.service.loaded == [] and console.service.requests == 0


@pytest.mark.parametrize("action", [*ACTIONS, *OPEN, "infer"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_pages_elsewhere_are_refused_without_an_origin_too(
    console: RunningConsole, action: str, site: str
) -> None:
    every = {**ACTIONS, **OPEN, "infer": INFERENCE}
    assert console.ask(*every[action], Sec_Fetch_Site=site).status == 403


def test_own_pages_and_programs_may_ask(console: RunningConsole) -> None:
    own = {"Origin": console.url.rstrip("/"), "Sec_Fetch_Site": "same-origin"}
    assert console.ask(*ACTIONS["load"], **own).status == 200
    assert console.ask(*ACTIONS["load"]).status == 200
    assert [name for name, *_ in console.service.loaded] == ["identity", "identity"]
    assert console.ask("GET", "/", Sec_Fetch_Site="cross-site").status == 200  # a link to the console


@pytest.mark.parametrize("action", [*ACTIONS, *OPEN, "infer"])
def test_without_a_token_nothing_is_told_or_done(guarded: RunningConsole, action: str) -> None:
    every = {**ACTIONS, **OPEN, "infer": INFERENCE}
    assert guarded.ask(*every[action]).status == 401
    assert guarded.ask(*every[action], Authorization="Bearer guessed").status == 401
    assert guarded.service.loaded == [] and guarded.service.requests == 0


@pytest.mark.parametrize("action", ACTIONS)
def test_token_without_the_scope_is_refused_by_the_server(guarded: RunningConsole, action: str) -> None:
    answer = guarded.ask(*ACTIONS[action], Authorization="Bearer web")
    assert answer.status == 403 and "lacks the scope manage" in answer.json["error"]
    assert guarded.service.loaded == []


def test_token_may_do_what_its_scope_says(guarded: RunningConsole) -> None:
    assert guarded.ask(*ACTIONS["load"], Authorization="Bearer ops").status == 200
    assert guarded.ask(*INFERENCE, Authorization="Bearer ops").status == 403
    assert guarded.ask(*INFERENCE, Authorization="Bearer web").status == 200
    assert guarded.ask(*OPEN["live"], Authorization="Bearer web").json["problem"] == ""
    assert guarded.ask(*OPEN["live"], Authorization="Bearer teacher").status == 403
    assert guarded.ask(*OPEN["history"], Authorization="Bearer teacher").status == 403


def test_console_open_to_the_network_serves_holders_of_tokens_only(consoles: Consoles) -> None:
    with consoles(place=Place("0.0.0.0", 0)) as running:
        for action in (*ACTIONS.values(), *OPEN.values(), INFERENCE):
            answer = running.ask(*action)
            assert answer.status == 403 and "--auth-tokens-file" in answer.json["error"]
        assert running.ask("GET", "/").status == 200
    with consoles(place=Place("0.0.0.0", 0), guard=guard_of_tokens()) as running:
        assert running.ask(*ACTIONS["load"], Authorization="Bearer ops").status == 200


def test_requests_and_answers_pass_as_they_are(console: RunningConsole) -> None:
    answer = console.ask(*INFERENCE, Content_Type="application/json")
    assert answer.json["outputs"][0]["data"] == [1.0, 2.0]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    missing = console.ask("GET", "/v2/models/none")
    assert missing.status == 404 and "none" in missing.json["error"]
    binary = (
        b'{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}'
    )
    raw = console.ask(
        "POST",
        "/v2/models/identity/infer",
        binary + bytes(8),
        Inference_Header_Content_Length=str(len(binary)),
    )
    assert raw.status == 200 and raw.json["outputs"][0]["data"] == [0.0, 0.0]


@pytest.mark.parametrize(
    "path", ["/v2/../etc/passwd", "/v2/./x", "/v1/..", "/v3", "/v2x", "/metrics", "/lib/"]
)
def test_nothing_else_is_reached(console: RunningConsole, path: str) -> None:
    assert console.ask("GET", path).status in (400, 404)


def test_pages_are_static_files_under_a_strict_policy(console: RunningConsole) -> None:
    page = console.ask("GET", "/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert console.ask("GET", "/lib/dom.js").headers["Content-Type"].startswith("text/javascript")
    assert console.ask("GET", "/", If_None_Match=page.headers["ETag"]).status == 304
    assert console.ask("POST", "/").status == 405


def test_server_that_does_not_answer_is_a_problem_in_words(consoles: Consoles) -> None:
    with consoles() as running:
        running.fronts.loop.call(running.fronts._fronts[-1].stop(0))
        assert running.ask(*INFERENCE).status == 502
        assert "does not answer" in running.ask(*OPEN["live"]).json["problem"]


def test_history_wants_a_number_of_seconds(console: RunningConsole) -> None:
    assert console.ask("GET", "/console/history?span=long").status == 400
    found = console.ask("GET", "/console/history?model=none&version=1&span=999999").json
    assert found["step_s"] == 10 and found["rate"] == [None] * 360
