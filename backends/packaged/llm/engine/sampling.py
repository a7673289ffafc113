"""Sampling parameters of a request: JSON with vLLM's names, defaults and limits.

Imports no framework.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple


class Structure(NamedTuple):
    """What a text has to be.

    Attributes:
        kind: "json", "regex", "choice" or "grammar".
        text: a schema, a regular expression, a JSON list of texts, or a grammar of Lark.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class SamplingParameters:
    """How a text is continued.

    Attributes:
        temperature: 0 for the most probable token each time.
        top_p, top_k, min_p: which tokens are drawn from; 1, 0 and 0 for all.
        repetition_penalty, presence_penalty, frequency_penalty: against tokens that were there.
        max_tokens: how many tokens are generated at most.
        min_tokens: how many are before the text may end by a stop text or a token; at most `max_tokens`.
        logit_bias: what is added to the logits of tokens; -100 bans one, 100 forces it.
        stop: texts that end the generation; they are no part of it unless `include_stop_str_in_output`.
        stop_token_ids: tokens that do.
        ignore_eos: whether the model's own end does not.
        seed: makes the draw repeatable; None for a new one each time.
        logprobs: how many of the most probable tokens are reported beside each; None for no report.
        structured_outputs: what the text has to be; None for any text.
        lora_name: the adapter that the text is generated with, "" for none.
        cache_salt: only texts of the same salt share what the model has read of their prompts.
        n: always 1.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 16
    min_tokens: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    structured_outputs: Structure | None = None
    lora_name: str = ""
    cache_salt: str = ""
    n: int = 1


def read_sampling_parameters(text: str) -> SamplingParameters:
    """Read a JSON object; null stands for the default, and "0.5" for 0.5: parameters of requests may be text.

    Raises:
        ValueError: with a text for the client, for an unknown name and a value that is not allowed.
    """
    given = _parsed(text)
    if not isinstance(given, dict):
        raise ValueError(f"sampling parameters must be a JSON object, got {text[:100]}")
    unknown = sorted(given.keys() - _RULES.keys())
    if unknown:
        raise ValueError(f"unknown sampling parameter '{unknown[0]}', known are: {', '.join(_RULES)}")
    read = SamplingParameters(
        **{name: _value(name, value) for name, value in given.items() if value is not None}
    )
    if read.min_tokens > read.max_tokens:
        raise ValueError(
            f"min_tokens must be less than or equal to max_tokens={read.max_tokens}, got {read.min_tokens}."
        )
    return read


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _value(name: str, given: Any) -> Any:
    rule = _RULES[name]
    try:
        value = rule.read(given)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise ValueError(f"{name} must be {rule.kind}, got {_shown(given)}.") from None
    if not rule.allowed(value):
        raise ValueError(f"{name} must be {rule.limits}, got {_shown(given)}.")
    return value


def _shown(given: Any) -> str:
    return str(given)[:100]


def _number(given: Any) -> float:
    if isinstance(given, bool):
        raise TypeError
    return float(given)


def _integer(given: Any) -> int:
    if isinstance(given, bool) or (isinstance(given, float) and not given.is_integer()):
        raise TypeError
    return int(given)


def _flag(given: Any) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[str(given).lower()]


def _texts(given: Any) -> tuple[str, ...]:
    each = [given] if isinstance(given, str) else given
    if not isinstance(each, list) or not all(isinstance(text, str) for text in each):
        raise TypeError
    return tuple(each)


def _integers(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list):
        raise TypeError
    return tuple(map(_integer, given))


def _biases(given: Any) -> dict[int, float]:
    pairs = json.loads(given) if isinstance(given, str) else given
    if not isinstance(pairs, dict):
        raise TypeError
    return {int(token): min(max(_number(bias), -MAX_BIAS), MAX_BIAS) for token, bias in pairs.items()}


def _structure(given: Any) -> Structure:
    """Read vLLM's parameters of structured outputs, an object or the text of one."""
    fields = json.loads(given) if isinstance(given, str) else given
    if not isinstance(fields, dict):
        raise TypeError
    wanted = {name: value for name, value in fields.items() if value is not None and value is not False}
    if len(wanted) != 1:
        raise ValueError
    ((name, value),) = wanted.items()
    if name == "json_object" and value is True:
        return Structure("json", '{"type": "object"}')
    if name == "json" and isinstance(value, dict | bool):
        return Structure("json", json.dumps(value))
    if name == "choice" and value:
        return Structure("choice", json.dumps(_texts(value)))
    if name in ("json", "regex", "grammar") and isinstance(value, str):
        return Structure(name, value)
    raise ValueError


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given


class _Rule(NamedTuple):
    kind: str
    read: Callable[[Any], Any]
    limits: str
    allowed: Callable[[Any], bool]


def _between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: low <= value <= high


MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 256
MAX_LOGPROBS: Final = 20
MAX_BIAS: Final = 100.0
MAX_BIASES: Final = 1024
MAX_STRUCTURE: Final = 64 << 10
MAX_NAME: Final = 1024
_PENALTY: Final = _Rule("a number", _number, "in [-2, 2]", _between(-2, 2))
_FLAG: Final = _Rule("true or false", _flag, "", lambda _: True)

_NAME: Final = _Rule(
    "a string", _text, f"at most {MAX_NAME} characters", lambda value: len(value) <= MAX_NAME
)

_RULES: Final = {
    "temperature": _Rule("a number", _number, "non-negative", _between(0, 1e6)),
    "top_p": _Rule("a number", _number, "in (0, 1]", lambda value: 0 < value <= 1),
    "top_k": _Rule("an integer", _integer, "0 (disable), or at least 1", lambda value: -1 <= value < 1 << 31),
    "min_p": _Rule("a number", _number, "in [0, 1]", _between(0, 1)),
    "repetition_penalty": _Rule(
        "a number", _number, "greater than zero", lambda value: 0 < value < float("inf")
    ),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "max_tokens": _Rule("an integer", _integer, "at least 1", lambda value: value >= 1),
    "min_tokens": _Rule("an integer", _integer, "at least 0", lambda value: value >= 0),
    "logit_bias": _Rule(
        "an object of tokens and numbers",
        _biases,
        f"at most {MAX_BIASES} tokens with numbers",
        lambda value: len(value) <= MAX_BIASES and not any(map(math.isnan, value.values())),
    ),
    "stop": _Rule(
        "a string or a list of them",
        _texts,
        f"at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARACTERS} characters",
        lambda value: len(value) <= MAX_STOPS and all(0 < len(text) <= MAX_STOP_CHARACTERS for text in value),
    ),
    "stop_token_ids": _Rule(
        "a list of integers", _integers, "at most 128 tokens", lambda value: len(value) <= 128
    ),
    "include_stop_str_in_output": _FLAG,
    "ignore_eos": _FLAG,
    "seed": _Rule("an integer", _integer, "of 64 bits", _between(-(1 << 63), (1 << 63) - 1)),
    "logprobs": _Rule("an integer", _integer, f"in [0, {MAX_LOGPROBS}]", _between(0, MAX_LOGPROBS)),
    "structured_outputs": _Rule(
        "an object with one of json, json_object, regex, choice and grammar",
        _structure,
        f"at most {MAX_STRUCTURE} characters",
        lambda value: len(value.text) <= MAX_STRUCTURE,
    ),
    "lora_name": _NAME,
    "cache_salt": _NAME,
    "n": _Rule("an integer", _integer, "1: a request has one continuation", lambda value: value == 1),
}
