"""Generation in the environment of the packaged backend, against what transformers generates."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from backends.base import Model
from tests.backends.llm.serving import TOKENS, Load, ask, outputs, text_of, text_request
from tests.backends.packaged import serve_model
from tests.unit.backend_harness import Call, Served, config
from tests.waiting import block_until


@pytest.mark.parametrize("stream", [False, True])
def test_texts_are_those_of_transformers(small: Served, expected: dict[str, str], stream: bool) -> None:
    """More of them than run together, of different lengths."""
    calls = {
        prompt: ask(small, prompt, {}, stream=stream, exclude_input_in_output=True) for prompt in expected
    }
    assert {prompt: text_of(call) for prompt, call in calls.items()} == expected
    sizes = [len(call.responses) for call in calls.values()]
    assert sizes == [TOKENS if stream else 1] * len(expected)


def test_requests_are_continued_together(small: Served, expected: dict[str, str]) -> None:
    """A short text ends while a long one, begun before, goes on."""
    prompt = next(iter(expected))
    long = ask(small, prompt, {"max_tokens": 100, "ignore_eos": True}, stream=True)
    block_until(lambda: len(long.responses) > 2)
    assert (
        text_of(ask(small, prompt, {"max_tokens": 3}, exclude_input_in_output=True)) == expected[prompt][:3]
    )
    assert not long.finished.is_set()
    assert text_of(long).startswith(expected[prompt])


def test_sliding_windows_are_continued_alone(load: Load, repository: Path) -> None:
    served = load("sliding")
    known = json.loads((repository / "sliding" / "expected.json").read_text())
    calls = {prompt: ask(served, prompt, exclude_input_in_output=True) for prompt in known}
    assert {prompt: text_of(call) for prompt, call in calls.items()} == known


def test_prompt_is_in_front_unless_excluded(small: Served, expected: dict[str, str]) -> None:
    assert text_of(ask(small, "The old", {"max_tokens": 4})) == "The old" + expected["The old"][:4]


def test_pieces_are_whole_characters(small: Served) -> None:
    responses = ask(small, "The old man — tr", {"max_tokens": 6}, stream=True).wait()
    assert [outputs(response)["text_output"] for response in responses] == ["", "è", "s", " ", "", "â"]


def test_additional_outputs(small: Served) -> None:
    names = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
    wanted = {f"return_{name}": True for name in names}
    (response,) = ask(small, "The old", {"max_tokens": 2, "logprobs": 2}, **wanted).wait()
    found = outputs(response)
    assert (found["finish_reason"], found["num_input_tokens"], found["num_output_tokens"]) == ("length", 7, 2)
    tokens = json.loads(found["logprobs"])
    assert [next(iter(token.values()))["decoded_token"] for token in tokens] == [" ", "m"]
    assert [len(token) for token in tokens] == [2, 2] and next(iter(tokens[0].values()))["rank"] == 1
    own = sum(next(iter(token.values()))["logprob"] for token in tokens)
    assert found["cumulative_logprob"] == pytest.approx(own) and own < 0


def test_the_token_that_ends_a_text_is_spelled_in_its_report(small: Served) -> None:
    forced = {"logprobs": 0, "logit_bias": {"256": 100}}
    (response,) = ask(small, "The old", forced, return_logprobs=True, return_finish_reason=True).wait()
    found = outputs(response)
    assert (found["text_output"], found["finish_reason"]) == ("The old", "stop")
    (token,) = json.loads(found["logprobs"])
    assert [each["decoded_token"] for each in token.values()] == ["<end>"]


def test_streamed_additional_outputs(small: Served) -> None:
    call = ask(
        small, "The old", {"max_tokens": 2}, stream=True, return_finish_reason=True, return_logprobs=True
    )
    first, last = map(outputs, call.wait())
    assert (first["finish_reason"], last["finish_reason"]) == ("None", "length")
    assert (first["logprobs"], last["logprobs"]) == ("null", "null")


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"stop": ["tr"]}, " man — "),
        ({"stop": "tr", "include_stop_str_in_output": True}, " man — tr"),
        ({"stop_token_ids": [220]}, ""),
    ],
)
def test_stop(small: Served, parameters: dict[str, Any], text: str) -> None:
    (response,) = ask(
        small, "The old", parameters, exclude_input_in_output=True, return_finish_reason=True
    ).wait()
    assert outputs(response) == {"text_output": text, "finish_reason": "stop"}


def test_end_of_the_model(small: Served) -> None:
    (response,) = ask(small, "now without", {"max_tokens": 100}, return_finish_reason=True).wait()
    found = outputs(response)
    assert found["finish_reason"] == "stop" and found["text_output"].endswith("a fish, señor 🐟.")


def test_drawn_text_repeats_with_its_seed(small: Served) -> None:
    drawn = [
        text_of(ask(small, "The", {"temperature": 3.0, "top_k": 50, "top_p": 0.9, "seed": seed}))
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert text_of(ask(small, "The old", {"temperature": 5.0, "top_k": 1})).startswith("The old man")


def test_penalties(small: Served) -> None:
    text = text_of(ask(small, "T", {"frequency_penalty": 2, "presence_penalty": 2, "repetition_penalty": 99}))
    letters = text.replace("\N{REPLACEMENT CHARACTER}", "")
    assert len(set(letters)) == len(letters) > 10


@pytest.mark.parametrize("stream", [False, True])
def test_cancellation(small: Served, stream: bool) -> None:
    """The client leaves while others fill the batch; `tests/unit` has one that leaves later."""
    others = [ask(small, "The old", {"max_tokens": 100, "ignore_eos": True}) for _ in range(4)]
    call = Call(text_request("The old", stream=stream))
    call.cancelled = True
    small.backend.instance_execute(small.instance, [call])
    (response,) = call.wait()
    assert response.failure is not None
    assert (response.failure.code, response.failure.message) == (
        ErrorCode.CANCELLED,
        "Request was cancelled",
    )
    assert all(other.wait()[0].failure is None for other in others)


@pytest.mark.parametrize(
    ("prompt", "parameters", "inputs", "message"),
    [
        (
            *("a", {}, {"stream": True, "exclude_input_in_output": False}),
            "When streaming, `exclude_input_in_output` = False is not allowed.",
        ),
        ("", {}, {}, "The decoder prompt cannot be empty"),
        (
            "a" * 128,
            {},
            {},
            "The decoder prompt (length 128) is longer than the maximum model length of 128.",
        ),
        ("a", {"top_p": 2}, {}, "top_p must be in (0, 1], got 2."),
        ("a", {"lora_nam": "doll"}, {}, "unknown sampling parameter 'lora_nam'"),
        ("a", {"logit_bias": {"257": 1}}, {}, "token_id(s) [257] in logit_bias contain out-of-vocab"),
        ("a", {"min_tokens": 50}, {}, "min_tokens must be less than or equal to max_tokens=40, got 50."),
    ],
)
def test_request_that_is_refused(
    small: Served, prompt: str, parameters: dict[str, Any], inputs: dict[str, bool], message: str
) -> None:
    (response,) = ask(small, prompt, parameters, **inputs).wait()
    assert response.failure is not None and response.failure.code is ErrorCode.INVALID_ARG
    assert response.failure.message.startswith(f"Error generating stream: {message}")


def test_text_ends_where_the_model_does(small: Served) -> None:
    (response,) = ask(
        *(small, "a" * 120, {"max_tokens": 99, "ignore_eos": True}),
        return_num_output_tokens=True,
        return_finish_reason=True,
    ).wait()
    found = outputs(response)
    assert (found["num_output_tokens"], found["finish_reason"]) == (8, "length")


def test_waiting_requests_are_bounded(load: Load) -> None:
    served = load("small", {"model": "weights", "max_num_seqs": 1, "max_num_waiting": 1})
    calls = [ask(served, "The old", {"max_tokens": 100, "ignore_eos": True}) for _ in range(6)]
    failures = [failure for call in calls if (failure := call.wait()[0].failure)]
    assert {(failure.code, failure.message) for failure in failures} == {
        (ErrorCode.UNAVAILABLE, "Exceeds maximum queue size")
    }
    assert 3 <= len(failures) <= 5


def test_metrics(load: Load) -> None:
    served = load("small", {"model": "weights"})
    text_of(ask(served, "The old", {"max_tokens": 5}, stream=True))

    def value(name: str) -> float:
        found = {family[0]: family[3][0][1] for family in served.backend.metrics()}
        return float(found[f"llm:{name}"])

    block_until(lambda: value("num_requests_running") == 0)
    assert value("num_requests_waiting") == 0
    assert (value("prompt_tokens_total"), value("generation_tokens_total")) == (7, 5)


def test_unload_finishes_texts(load: Load) -> None:
    served = load("small", {"model": "weights"})
    call = ask(served, "The old", {"max_tokens": 100, "ignore_eos": True}, return_num_output_tokens=True)
    served.backend.instance_finalize(served.instance)
    assert outputs(call.wait()[0])["num_output_tokens"] == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "nobody/gpt"}, "model 'nobody/gpt' is no folder in"),
        ({"model": "weights", "max_model_len": 129}, "max_model_len 129 is above the model's 128 positions"),
    ],
)
def test_model_that_cannot_be_served(load: Load, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InferError) as caught:
        load("small", arguments)
    assert message in caught.value.message


def changed(repository: Path, folder: Path, change: Callable[[dict[str, Any]], None], **fields: Any) -> Model:
    """Return a model like `small` with changed weights, and other fields in its config.json."""
    import safetensors.numpy

    shutil.copytree(repository / "small", folder)
    weights = folder / "1" / "weights"
    tensors = safetensors.numpy.load_file(weights / "model.safetensors")
    change(tensors)
    safetensors.numpy.save_file(tensors, weights / "model.safetensors", {"format": "pt"})
    known = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps({**known, **fields}))
    return Model(config('name: "small" backend: "llm"'), 1, folder)


def without_layer(tensors: dict[str, Any]) -> None:
    del tensors["transformer.h.1.mlp.c_fc.weight"], tensors["transformer.ln_f.bias"]


def of_another_shape(tensors: dict[str, Any]) -> None:
    tensors["transformer.ln_f.bias"] = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        (
            without_layer,
            {},
            "not the weights of a GPT2LMHeadModel: it lacks transformer.h.1.mlp.c_fc.weight,"
            " transformer.ln_f.bias",
        ),
        (of_another_shape, {}, "of another shape: transformer.ln_f.bias is [3], not [64]"),
        (
            lambda tensors: None,
            {"architectures": ["GPT2ForSequenceClassification"]},
            "'GPT2ForSequenceClassification' of ",
        ),
    ],
)
def test_weights_that_are_not_the_models_are_refused(
    repository: Path, tmp_path: Path, change: Callable[[Any], None], fields: dict[str, Any], message: str
) -> None:
    model = changed(repository, tmp_path / "small", change, **fields)
    loaded: list[Callable[[], None]] = []
    with pytest.raises(InferError) as caught:
        serve_model("llm", model, loaded.append, completed=True)
    for close in loaded:
        close()
    assert message in caught.value.message
