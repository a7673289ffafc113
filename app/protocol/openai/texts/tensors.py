"""Requests for texts as those of a model, and its responses as pieces of a text, by its format. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from app.core.config.model_config import TensorSpec
from app.core.config.text_models import MESSAGES, STREAM, TextModel
from app.core.datatypes import unpack_bytes
from app.core.errors import InferError
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.protocol.http.generate import generate_request
from app.protocol.openai.errors import invalid, refused
from app.protocol.openai.texts.requests import SCALARS, TextRequest

UNLIMITED: Final = 1 << 20
"""Tokens of a text that ends with its model's context: engines stop there."""
REPORTS: Final = ("finish_reason", "num_input_tokens", "num_output_tokens", "num_cached_tokens")
_SEEDS: Final = 1 << 64
_TRTLLM_NAMES: Final = {"stop": "stop_words", "seed": "random_seed"}


class Piece(NamedTuple):
    """A part of a text.

    Attributes:
        text: in UTF-8.
        reason: why the text ends; "" where it goes on, or the model does not say.
        input_tokens, output_tokens, cached_tokens: of the prompt, of this part, of the prompt out of a cache;
            None where the model does not say.
        logprobs: of its tokens, as JSON of vLLM's backend; "" for none.
    """

    text: bytes
    reason: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    logprobs: str = ""


def model_request(
    name: str,
    text: TextModel,
    inputs: Iterable[TensorSpec],
    request: TextRequest,
    prompt: str,
    number: int,
    request_id: str,
    limit: int,
    adapter: str = "",
) -> InferRequest:
    """Return the request for one continuation.

    Args:
        name: of the model.
        text: what it is.
        inputs: it has.
        request: of the client.
        prompt: to continue.
        number: of this continuation of the prompt, from 0.
        request_id: of the request.
        limit: bytes of a tensor.
        adapter: of LoRA.

    Raises:
        OpenAIError: the model has no input for something that the request says.
    """
    known, caller = {spec.name: spec for spec in inputs}, request.caller
    values = {text.text: prompt, **_values(text, known, request, number, adapter), **request.extra}
    if text.renders and request.chat is not None:
        values[MESSAGES] = msgspec.json.encode(request.chat).decode()
        if text.text == MESSAGES or known[text.text].optional:
            values = {key: value for key, value in values.items() if key != text.text or key == MESSAGES}
    try:
        made = generate_request(name, {**values, **caller.names}, known.values(), request_id, limit)
    except InferError as error:
        raise invalid(error.message) from None
    return msgspec.structs.replace(made, priority=caller.priority, timeout_us=caller.timeout_us)


def _values(
    text: TextModel, known: Mapping[str, TensorSpec], request: TextRequest, number: int, adapter: str
) -> dict[str, Any]:
    sampling = dict(request.sampling.values)
    if request.sampling.seed is not None:
        sampling["seed"] = _following(request.sampling.seed, number)
    if text.format == "vllm":
        return _vllm(known, request, sampling, adapter)
    if adapter:
        raise refused("model", "with an adapter, which its model cannot have")
    if request.sampling.logprobs is not None:
        raise refused("logprobs", "by this model")
    named = _trtllm(known, request, sampling) if text.format == "trtllm" else _text(known, request, sampling)
    return named | {name: request.stream for name in STREAM if name in known}


def _following(seed: int, number: int) -> int:
    """Return the seed of a further continuation: behind the greatest of 64 bits comes the least."""
    return (seed + number + _SEEDS // 2) % _SEEDS - _SEEDS // 2


def _vllm(
    known: Mapping[str, TensorSpec], request: TextRequest, sampling: dict[str, Any], adapter: str
) -> dict[str, Any]:
    """Return the inputs of vLLM's backend: prompts are never in its texts, as streams cannot have them."""
    given = request.sampling
    # An absent limit would be vLLM's, 16.
    sampling["max_tokens"] = given.limit or UNLIMITED
    if given.stop:
        sampling["stop"] = given.stop
    if given.logprobs is not None:
        sampling["logprobs"] = given.logprobs
    if adapter:
        sampling["lora_name"] = adapter
    if "structured_outputs" in sampling and not isinstance(sampling["structured_outputs"], str):
        guide = msgspec.json.encode(sampling["structured_outputs"]).decode()
        sampling["structured_outputs"] = guide
    values: dict[str, Any] = {
        "stream": request.stream,
        "sampling_parameters": msgspec.json.encode(sampling).decode(),
        "exclude_input_in_output": True,
        **{f"return_{name}": True for name in REPORTS},
        "return_logprobs": given.logprobs is not None,
    }
    return {name: value for name, value in values.items() if name in known}


def _trtllm(
    known: Mapping[str, TensorSpec], request: TextRequest, sampling: dict[str, Any]
) -> dict[str, Any]:
    """Return the inputs of TensorRT-LLM's models that this one declares."""
    values = {"max_tokens": request.sampling.limit or UNLIMITED, **sampling}
    if request.sampling.stop:
        values["stop"] = request.sampling.stop
    found: dict[str, Any] = {"exclude_input_in_output": True} if "exclude_input_in_output" in known else {}
    for name, value in values.items():
        place = name if name in known else _TRTLLM_NAMES.get(name, name)
        if place not in known:
            raise refused(name, "by this model, which has no such input")
        found[place] = value
    return found


def _text(known: Mapping[str, TensorSpec], request: TextRequest, sampling: dict[str, Any]) -> dict[str, Any]:
    """Return what other models get: scalars they may look at, and the rest if they have an input for it."""
    values = dict(sampling)
    if request.sampling.limit is not None:
        values["max_tokens"] = request.sampling.limit
    for name in ("stop", "stop_words"):
        if name in known and request.sampling.stop:
            values[name] = request.sampling.stop
    for name, value in values.items():
        if name not in known and not isinstance(value, SCALARS):
            raise refused(name, "by this model, which has no such input")
        if isinstance(value, dict):
            values[name] = msgspec.json.encode(value).decode()
    return values


def stops_itself(text: TextModel, known: Iterable[str]) -> bool:
    """Return whether a model ends its texts by the request's `stop`, which is otherwise done for it."""
    return text.format != "text" or not {"stop", "stop_words"}.isdisjoint(known)


def read_piece(response: InferResponse, output: str) -> Piece:
    """Return what a response adds to its text.

    Raises:
        InferError: its text is not what its bytes should be.
    """
    outputs = response.outputs
    if len(outputs) == 1 and outputs[0].name == output:  # as most are, of models that report nothing else
        return Piece(_text_of(outputs[0]))
    found = {tensor.name: tensor for tensor in outputs}
    tensor = found.get(output)
    return Piece(
        b"" if tensor is None else _text_of(tensor),
        _word(found.get("finish_reason")),
        _number(found.get("num_input_tokens")),
        _number(found.get("num_output_tokens")),
        _number(found.get("num_cached_tokens")),
        _word(found.get("logprobs")),
    )


def _text_of(tensor: Tensor) -> bytes:
    parts = unpack_bytes(tensor.data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _word(tensor: Tensor | None) -> str:
    if tensor is None or tensor.datatype != "BYTES":
        return ""
    parts = unpack_bytes(tensor.data)
    text = parts[-1].decode(errors="replace") if parts else ""
    return "" if text in ("None", "null") else text


def _number(tensor: Tensor | None) -> int | None:
    if tensor is None or tensor.datatype == "BYTES":
        return None
    values = tensor.array().ravel()
    return int(values.sum()) if values.size else None
