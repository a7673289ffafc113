"""Models that keep what requests have in common learn whose request each is."""

from typing import Any

import msgspec
import pytest

from app.access.grants import Grants
from app.access.tokens import make_token
from app.core.tensors import InferRequest, Tensor
from app.ingress.access.caller import context_of
from app.ingress.access.service import GuardedService
from app.routing.table import ModelState, VersionEntry
from tests.unit.backend_harness import config, infer

KEEPS = 'input { name: "cache_salt" data_type: TYPE_STRING dims: 1 optional: true }'


class Service:
    """Takes requests."""

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Any) -> None:
        self.requests.append(request)

    def __getattr__(self, name: str) -> Any:
        return None


def sent(text: str, request: InferRequest, token: str = "") -> tuple[Tensor, ...]:
    """Return the inputs that a model with this configuration gets."""
    entry = VersionEntry("m", 1, ModelState.READY, config=config(text).SerializeToString())
    grants = Grants([make_token("secret", name="blue", scope=("infer",))])
    grant = grants.find("Bearer secret") if token else None
    service: Any = Service()
    context_of(grant).run(GuardedService(service).submit, entry, request, lambda response: None)
    return tuple(service.requests[0].inputs)


@pytest.mark.parametrize("given", [{}, {"cache_salt": ["green"]}])
def test_name_of_the_token_is_the_salt(given: dict[str, Any]) -> None:
    text, salt = sent(KEEPS, infer({"text": ["a"], **given}), "secret")
    assert (text.name, salt.name) == ("text", "cache_salt")
    assert salt.array().tolist() == [b"blue"] and salt.shape == (1,)


def test_requests_without_a_token_and_to_other_models_are_as_they_were() -> None:
    request = infer({"text": ["a"]})
    assert sent(KEEPS, request) == request.inputs and sent("", request, "secret") == request.inputs


def test_each_row_of_a_batch_has_the_salt() -> None:
    text = f"max_batch_size: 4 {KEEPS}"
    _, salt = sent(text, infer({"text": [["a"], ["b"], ["c"]]}), "secret")
    assert salt.array().tolist() == [[b"blue"]] * 3


@pytest.mark.parametrize("rows", [0, 5, 1 << 40])
def test_a_batch_that_the_model_refuses_makes_no_salt(rows: int) -> None:
    request = infer({"text": [["a"]]})
    text = msgspec.structs.replace(request.inputs[0], shape=(rows, 1))
    inputs = sent(f"max_batch_size: 4 {KEEPS}", msgspec.structs.replace(request, inputs=(text,)), "secret")
    assert [tensor.name for tensor in inputs] == ["text"]
