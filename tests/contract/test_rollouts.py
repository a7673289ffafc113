"""The rollout API of a running server: what it answers where there is nothing to roll out."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.conftest import Addresses
from tests.rollout_calls import ASK
from tests.server import WITH_ENGINE

Ask = Callable[..., tuple[str, Any]]
of_a_cluster = pytest.mark.skipif(WITH_ENGINE, reason="rollouts need a cluster")


@pytest.fixture(params=list(ASK))
def ask(request: pytest.FixtureRequest, server: Addresses) -> Ask:
    """Asks over one of the protocols; the status of an error is that of HTTP."""
    codes = {"NOT_FOUND": "404", "INVALID_ARGUMENT": "400", "UNIMPLEMENTED": "501"}

    def called(*arguments: Any) -> tuple[str, Any]:
        status, answer = ASK[request.param](getattr(server, request.param), *arguments)
        return codes.get(status, status), answer

    return called


@pytest.mark.skipif(not WITH_ENGINE, reason="of a server of one process")
def test_one_process_says_that_it_has_no_rollouts(ask: Ask) -> None:
    refused = "501", "there are no rollouts in a server of one process"
    assert ask("simple") == ask("simple", {"action": "start"}) == refused


@of_a_cluster
@pytest.mark.parametrize("model", ["simple", "none_such"])
@pytest.mark.parametrize("action", [None, "pause", "set", "resume", "promote", "abort"])
def test_without_a_rollout_there_is_nothing_to_change(ask: Ask, model: str, action: str | None) -> None:
    status, text = ask(model, *([] if action is None else [{"action": action}]))
    assert (status, text.partition(";")[0]) == ("404", f"model '{model}' has had no rollout")


@of_a_cluster
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"action": "start"},
            "there is nothing to roll out: requests to model 'simple' without a version mean",
        ),
        ({"action": "start", "weight": 101}, "weight is 101, but it is a percentage: give 0 to 100"),
        ({"action": "start", "spec": {"steps": [5, 1]}}, "spec: steps: 1 follows 5, but steps must rise"),
        ({"action": "start", "spec": {"wait": 5}}, "spec: Object contains unknown field `wait`"),
        ({"action": "start", "candidate": 99}, "model 'simple' has no version 99"),
        ({"action": "fly"}, "invalid rollout request: Invalid enum value 'fly' - at `$.action`; actions are"),
    ],
)
def test_a_rollout_that_cannot_be_started_says_why(ask: Ask, change: Any, text: str) -> None:
    status, answer = ask("simple", change)
    assert (status, answer[: len(text)]) == ("400", text)


@of_a_cluster
def test_an_unknown_model_has_no_rollout_to_start(ask: Ask) -> None:
    assert ask("none_such", {"action": "start"}) == (
        "404",
        "model 'none_such' is not in a model repository, so there is no version to roll out",
    )
