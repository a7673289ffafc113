"""What reads bodies of OpenAI's clients, and texts of models."""

from typing import Final

import msgspec

from app.core.errors import InferError
from app.protocol.openai.caller import Caller
from app.protocol.openai.embeddings import Embedder, read_embeddings
from app.protocol.openai.fields import Fields, parse_body
from app.protocol.openai.logprobs import chat_logprobs, completion_logprobs, read_logprobs
from app.protocol.openai.rerank import PairScorer, read_rerank
from app.protocol.openai.texts.chat import read_chat
from app.protocol.openai.texts.completions import read_completion
from app.protocol.openai.texts.requests import Defaults
from app.protocol.openai.tool_choice import read_tools
from app.protocol.openai.tools.deltas import CallReader
from app.protocol.openai.tools.parsers import PARSERS, Named, Required
from tests.fuzz.target import LIMIT, Target, cut
from tests.unit.app.protocol.openai.embedders import PAIRS, VECTORS, VLLM, model

_MODELS: Final = [model(VECTORS), model(VLLM)]
_PAIRS: Final = model(PAIRS)
_FORMS: Final = (*PARSERS.values(), Required, Named)
_OK: Final = (InferError,)
_DEFAULTS: Final = Defaults(16, "llama3")


def chat(data: bytes) -> None:
    each = _MODELS[1]
    asked = read_chat(Fields(parse_body(data, LIMIT)), each.text, frozenset(each.inputs), _DEFAULTS)
    msgspec.json.encode(asked.chat)


def completion(data: bytes) -> None:
    each = _MODELS[1]
    read_completion(Fields(parse_body(data, LIMIT)), each.text, frozenset(each.inputs), _DEFAULTS)


def embeddings(data: bytes) -> None:
    for each in _MODELS:
        asked = read_embeddings(Fields(parse_body(data, LIMIT)), each.text, each.inputs)
        Embedder(each.text, each.inputs, each.shapes, asked.dimensions).requests(asked.inputs, Caller(), "")


def rerank(data: bytes) -> None:
    asked = read_rerank(Fields(parse_body(data, LIMIT)))
    PairScorer(_PAIRS.text, _PAIRS.inputs, _PAIRS.shapes).requests(asked, "")


def tools(data: bytes) -> None:
    read_tools(Fields(parse_body(data, LIMIT)), _MODELS[1].text, "llama3").guide()


def logprobs(data: bytes) -> None:
    drawn = read_logprobs(data.decode(errors="replace"), 3)
    chat_logprobs(drawn)
    completion_logprobs(drawn, 0)


def calls(data: bytes) -> None:
    """Two bytes that say where a text is cut, and the text: its calls are the same in one piece."""
    size, rest = cut(data)
    text = rest.decode(errors="replace")
    for form in _FORMS:
        one, other = (CallReader(form(["f"], 1000), "") for _ in range(2))
        whole = [one.push(text, True)[0], _functions(one)]
        pieces = [other.push(text[:size], False)[0] + other.push(text[size:], True)[0], _functions(other)]
        assert whole == pieces


def _functions(reader: CallReader) -> list[object]:
    return [call["function"] for call in reader.whole()]


_CALL: Final = b'{"name": "f", "arguments": {"a": "\\" }"}}'

OPENAI: Final = {
    "openai_chat": Target(
        chat,
        _OK,
        (
            b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role":'
            b' "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f",'
            b' "arguments": "{}"}}]}],'
            b' "stream": true, "stream_options": {"include_usage": true}, "stop": ["a"], "n": 2}',
            b'{"messages": [{"role": "developer", "content": "a"}], "logprobs": true, "top_logprobs": 3,'
            b' "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}}',
        ),
    ),
    "openai_completion": Target(
        completion,
        _OK,
        (b'{"prompt": ["a", "b"], "max_tokens": 5, "logit_bias": {"7": -100}, "seed": 3, "top_p": 1}',),
    ),
    "openai_embeddings": Target(
        embeddings,
        _OK,
        (
            b'{"input": ["a", "b"], "encoding_format": "base64", "user": "me", "priority": 3}',
            b'{"input": [[1, 2], [3]], "dimensions": 3}',
        ),
    ),
    "openai_rerank": Target(
        rerank, _OK, (b'{"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "timeout": 5}',)
    ),
    "openai_tools": Target(
        tools,
        _OK,
        (
            b'{"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/a"}}}],'
            b' "tool_choice": "required", "parallel_tool_calls": false}',
            b'{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type":'
            b' "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function":'
            b' {"name": "f"}}]}}}',
        ),
    ),
    "openai_logprobs": Target(
        logprobs, _OK, (b'[{"7": {"logprob": -0.5, "rank": 2, "decoded_token": "a"}, "8": {"logprob": 0}}]',)
    ),
    "openai_calls": Target(
        calls,
        (),
        (
            b"\x00\x10<tool_call>" + _CALL + b"</tool_call>\n<tool_call>",
            b"\x00\x03[TOOL_CALLS][" + _CALL + b"," + _CALL + b"]",
            b"\x00\x07[TOOL_CALLS]f[CALL_ID]x[ARGS]{}",
            b"\x00\x09<|python_tag|>" + _CALL + b"; " + _CALL,
        ),
    ),
}
