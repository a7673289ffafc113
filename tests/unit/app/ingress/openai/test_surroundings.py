"""What the rest of the server does for texts: rollouts, tokens, idle models, counts, spans."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from app.access.grants import Grants
from app.access.tokens import Token, digest
from app.core.chat_templates import TextFacts
from app.core.observability.generation import Operation
from app.core.observability.metrics_config import MetricsConfig
from app.core.rollout.spec import HeaderRule
from app.core.rollout.split import Split
from app.core.tensors import InferRequest, InferResponse, RolloutHint
from app.ingress.access.guard import Guard
from app.ingress.metrics.family import read_families
from app.ingress.metrics.generation_families import GENERATION
from app.ingress.openai.job import Span
from app.routing.table import VersionEntry
from tests.unit.app.ingress.openai.test_management import ask
from tests.unit.app.ingress.openai.text_models import VLLM, TextService, inputs, of, post, tensor
from tests.unit.app.ingress.running_fronts import Fronts

COMPLETION = {"model": "identity", "prompt": "say"}
PATH = "/v1/completions"
COUNTED = {"text_output": "a", "num_input_tokens": 3, "num_output_tokens": 2, "finish_reason": "stop"}


class InRollout(TextService):
    """The candidate, version 2, answers all."""

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        entry = msgspec.structs.replace(super().resolve(name, version), content="1111111111aa")
        rival = msgspec.structs.replace(entry, version=2, content="2222222222bb")
        rule = HeaderRule("x-version", "new")
        split = Split("r", "identity", stable=1, candidate=2, match=(rule,))
        return msgspec.structs.replace(entry, split=split, rival=rival)

    def responses(self, request: InferRequest) -> list[InferResponse]:
        return [msgspec.structs.replace(each, model_version="2") for each in super().responses(request)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_rollout_decides_by_headers_and_the_answer_tells_the_version(fronts: Fronts, stream: bool) -> None:
    service = InRollout(of("a"))
    with fronts(service=service, allow_openai=True) as running:
        body = COMPLETION | {"user": "u", "prompt_cache_key": "k", "stream": stream}
        found = post(running.http_port, PATH, body, **{"x-version": "new"})
    document = found.events[0] if stream else found.document
    assert document["system_fingerprint"] == "fp_2222222222"
    assert service.seen[0].rollout == RolloutHint("candidate")
    assert service.seen[0].parameters == {"max_tokens": 16, "user": "u", "prompt_cache_key": "k"}


def test_each_continuation_counts_for_a_tokens_limits(fronts: Fronts) -> None:
    token = Token(name="t", sha256=digest("secret"), scope=("infer",), models=("identity",), rate="3/h")
    guard = Guard(Grants([token]), None)
    service = TextService(of("a"))
    with fronts(service=service, guard=guard, allow_openai=True) as running:
        headers = {"Authorization": "Bearer secret"}
        assert post(running.http_port, PATH, COMPLETION | {"n": 2}, **headers).status == 200
        limited = post(running.http_port, PATH, COMPLETION | {"n": 2}, **headers)
        assert post(running.http_port, PATH, COMPLETION | {"model": "other"}, **headers).status == 403
        assert post(running.http_port, PATH, COMPLETION).status == 401
    assert (limited.status, limited.document["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(limited.headers["retry-after"]) > 0
    assert service.calls[2].cancelled, "what had begun is not left behind"


def test_an_idle_model_is_loaded_first(fronts: Fronts) -> None:
    service = TextService(of("a"))
    service.idle = True
    with fronts(service=service, allow_openai=True) as running:
        assert post(running.http_port, PATH, COMPLETION).document["choices"][0]["text"] == "a"


def test_priority_and_timeout_are_those_of_v2(fronts: Fronts) -> None:
    service = TextService(of("a"))
    with fronts(service=service, allow_openai=True) as running:
        post(running.http_port, PATH, COMPLETION | {"priority": 2, "timeout": 5000})
    (request,) = service.seen
    assert (request.priority, request.timeout_us) == (2, 5000)


def test_times_and_tokens_are_counted(fronts: Fronts) -> None:
    with fronts(service=TextService(of(COUNTED), VLLM), allow_openai=True) as running:
        post(running.http_port, PATH, COMPLETION | {"stream": True, "n": 2})
        post(running.http_port, PATH, COMPLETION)
        figures = running.generation
    (operation,) = figures
    assert operation == Operation("identity", "1", "text_completion")
    samples = {
        (sample.name, sample.labels.get("direction")): sample.value
        for metric in read_families(GENERATION, [(operation._asdict(), figures[operation])], MetricsConfig())
        for sample in metric.samples
        if "le" not in sample.labels
    }
    assert samples[("nereid_generation_tokens", "input")] == 6
    assert samples[("nereid_generation_tokens", "output")] == 6
    assert samples[("nereid_generation_first_token_seconds_count", None)] == 1
    assert samples[("nereid_generation_request_seconds_count", None)] == 2


def test_a_span_has_tokens_and_no_text() -> None:
    span, seen = Span({"gen_ai.operation.name": "chat"}, "text_output"), list[Any]()
    sink: Callable[[InferResponse], None] = seen.append
    for final in (False, True):
        outputs = tuple(tensor(*each) for each in COUNTED.items())
        span.deliver(sink, InferResponse("identity", "1", outputs, final=final))
    assert len(seen) == 2
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "identity",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
    }


class WithAdapters(TextService):
    adapters: tuple[str, ...] | None = ("tiny",)

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        facts = TextFacts(adapters=self.adapters)
        return msgspec.structs.replace(super().resolve(name, version), text=facts)


def test_an_adapter_is_named_behind_the_separator(fronts: Fronts) -> None:
    service = WithAdapters(of(COUNTED), VLLM)
    with fronts(service=service, allow_openai=True, lora_separator="_lora_") as running:
        found = post(running.http_port, PATH, COMPLETION | {"model": "identity_lora_tiny"})
        assert found.document["model"] == "identity_lora_tiny"
        unknown = post(running.http_port, PATH, COMPLETION | {"model": "identity_lora_big"})
        assert post(running.http_port, PATH, COMPLETION | {"model": "x_lora_tiny"}).status == 404
        listed = ask(running.http_port, "GET", "/v1/models").document["data"]
    assert unknown.document["detail"] == "Unknown LoRA: big; for model: identity_lora_big"
    assert json.loads(inputs(service.seen[0])["sampling_parameters"])["lora_name"] == "tiny"
    assert [(each["id"], each.get("parent")) for each in listed] == [
        ("identity", None),
        ("identity_lora_tiny", "identity"),
    ]


def test_any_adapter_may_be_named_where_nobody_knows_them(fronts: Fronts) -> None:
    service = WithAdapters(of(COUNTED), VLLM)
    service.adapters = None
    with fronts(service=service, allow_openai=True, lora_separator="_lora_") as running:
        assert post(running.http_port, PATH, COMPLETION | {"model": "identity_lora_big"}).status == 200
        listed = ask(running.http_port, "GET", "/v1/models").document["data"]
        assert ask(running.http_port, "GET", "/v1/models/identity_lora_big").status == 404
    assert json.loads(inputs(service.seen[0])["sampling_parameters"])["lora_name"] == "big"
    assert [each["id"] for each in listed] == ["identity"]
