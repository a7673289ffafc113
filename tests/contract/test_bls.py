"""Models that call other models, as their clients see it."""

import numpy as np
import pytest

from tests.contract.drivers import Driver, Input, Refused

RUNNING = "Model {} - Error when running inference:"
VALUES = np.array([3, 1, 2], np.int32)


def do(client: Driver, what: str) -> list[int]:
    response = client.infer("bls", [Input("INPUT", VALUES, "INT32")], parameters={"do": what})
    found: list[int] = response.array("OUTPUT").tolist()
    return found


@pytest.mark.parametrize("what", ["identity", "decoupled", "ensemble", "thread", "processes"])
def test_the_called_model_answers(client: Driver, what: str) -> None:
    assert do(client, what) == VALUES.tolist()


def test_a_cancelled_call_ends_as_its_model_does(client: Driver) -> None:
    """The model hears of it before its second response, and then sends an empty last one."""
    assert do(client, "advised") == VALUES.tolist()[:1]


def test_several_calls_at_once(client: Driver) -> None:
    assert do(client, "asynchronous") == [3, 1, 2, 4, 2, 3, 5, 3, 4]


def test_is_model_ready(client: Driver) -> None:
    assert do(client, "ready") == [1, 0, 1]


@pytest.mark.parametrize("model", ["bls_plain", "bls_await"])
def test_short_executions_wait_for_their_calls_on_the_loop(client: Driver, model: str) -> None:
    """After some short ones an execution is on the replica's loop, which also has to bring its answers."""
    for start in range(40):
        values = np.arange(start, start + 3, dtype=np.int32)
        response = client.infer(model, [Input("INPUT", values, "INT32")])
        assert response.array("OUTPUT").tolist() == (2 * values).tolist()


def test_a_model_calls_itself_while_an_instance_is_left(client: Driver) -> None:
    def ask(depth: int) -> list[int]:
        values = np.array([depth], np.int32)
        response = client.infer("bls_recursive", [Input("INPUT", values, "INT32")])
        found: list[int] = response.array("OUTPUT").tolist()
        return found

    assert ask(3) == [3]
    with pytest.raises(Refused) as caught:
        ask(4)
    assert caught.value.refusal.text.startswith(
        f"circular call of models: {' -> '.join(5 * ['bls_recursive'])};"
    )


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("missing", f"{RUNNING.format('nobody')} Request for unknown model: 'nobody' is not found"),
        ("version", f"{RUNNING.format('custom_identity_int32')} Request for unknown model: 'custom_"),
        ("itself", "circular call of models: bls -> bls"),
        ("plain_call_of_decoupled", f"{RUNNING.format('repeat_int32')} Model repeat_int32 is"),
    ],
)
def test_a_call_that_cannot_be(client: Driver, what: str, text: str) -> None:
    with pytest.raises(Refused) as caught:
        do(client, what)
    assert caught.value.refusal.text.startswith(text)
