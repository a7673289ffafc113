"""Sampling parameters of a request: JSON with vLLM's names, defaults and limits.

Imports no framework.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple


@dataclass(frozen=True)
class SamplingParameters:
    """How a text is continued.

    Attributes:
        temperature: 0 for the most probable token each time.
        top_p, top_k, min_p: which tokens are drawn from; 1, 0 and 0 for all.
        repetition_penalty, presence_penalty, frequency_penalty: against tokens that were there.
        max_tokens: how many tokens are generated at most.
        stop: texts that end the generation; they are no part of it unless `include_stop_str_in_output`.
        stop_token_ids: tokens that do.
        ignore_eos: whether the model's own end does not.
        seed: makes the draw repeatable; None for a new one each time.
        logprobs: how many of the most probable tokens are reported beside each; None for no report.
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
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1


def read_sampling_parameters(text: str) -> SamplingParameters:
    """Read a JSON object; null stands for the default, and "0.5" for 0.5: parameters of requests may be text.

    Raises:
        ValueError: with a text for the client, for an unknown name and a value that is not allowed.
    """
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError(f"sampling parameters must be a JSON object, got {text[:100]}")
    unknown = sorted(given.keys() - _RULES.keys())
    if unknown:
        raise ValueError(f"unknown sampling parameter '{unknown[0]}', known are: {', '.join(_RULES)}")
    return SamplingParameters(
        **{name: _value(name, value) for name, value in given.items() if value is not None}
    )


def _value(name: str, given: Any) -> Any:
    rule = _RULES[name]
    try:
        value = rule.read(given)
    except (KeyError, TypeError, ValueError, OverflowError):
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
_PENALTY: Final = _Rule("a number", _number, "in [-2, 2]", _between(-2, 2))
_FLAG: Final = _Rule("true or false", _flag, "", lambda _: True)

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
    "n": _Rule("an integer", _integer, "1: a request has one continuation", lambda value: value == 1),
}
