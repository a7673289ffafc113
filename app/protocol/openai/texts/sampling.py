"""How a text is continued: the fields of OpenAI's API and of vLLM's, checked by name and range.

They are checked here, because vLLM's backend answers a wrong name with an error of Python. No I/O.
"""

from typing import Any, Final

import msgspec

from app.protocol.openai.errors import invalid
from app.protocol.openai.fields import Fields, said, wrong_type

MAX_CHOICES: Final = 128
"""Continuations of a request, over all its prompts."""
MAX_TOP_LOGPROBS: Final = 20
_MAX_STOPS: Final = 16
_MAX_STOP_CHARACTERS: Final = 256
_MAX_BIASES: Final = 1024
_MAX_STOP_IDS: Final = 128
_INT32: Final = (1 << 31) - 1
_INT64: Final = (1 << 63) - 1
_NUMBERS: Final = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (1e-6, 1e6),
}
_INTEGERS: Final = {"seed": (-_INT64 - 1, _INT64), "top_k": (-1, _INT32), "min_tokens": (0, _INT32)}
_FLAGS: Final = ("ignore_eos", "include_stop_str_in_output")


class Sampling(msgspec.Struct):
    """How texts are continued.

    Attributes:
        values: by vLLM's names, what the request has.
        limit: tokens of a text; None for as many as fit.
        stop: texts that end one.
        logprobs: the most probable tokens that are reported beside each; None for no report.
    """

    values: dict[str, Any]
    limit: int | None
    stop: list[str]
    logprobs: int | None = None

    @property
    def seed(self) -> int | None:
        """The seed of the first continuation."""
        return self.values.get("seed")


def read_sampling(fields: Fields, default: int | None, most: int) -> Sampling:
    """Read the fields.

    Args:
        fields: of the request.
        default: tokens of a text where the request has no limit; None for as many as fit.
        most: tokens that a request may ask for; 0 for any number.

    Raises:
        OpenAIError: one is not allowed.
    """
    values: dict[str, Any] = {}
    for name, (low, high) in _NUMBERS.items():
        values[name] = fields.number(name, low, high)
    for name, (least, greatest) in _INTEGERS.items():
        values[name] = fields.integer(name, least, greatest)
    for name in _FLAGS:
        values[name] = fields.flag(name) or None
    values["stop_token_ids"] = _token_ids(fields)
    values["logit_bias"] = _biases(fields)
    values["structured_outputs"] = fields.take("structured_outputs")
    stop = _stops(fields)
    found = {name: value for name, value in values.items() if value is not None}
    return Sampling(found, _limit(fields, default, most), stop)


def _limit(fields: Fields, default: int | None, most: int) -> int | None:
    older = fields.integer("max_tokens", 1, most or _INT32)
    newer = fields.integer("max_completion_tokens", 1, most or _INT32)
    limit = newer or older or default
    return min(limit, most) if limit and most else limit or most or None


def _stops(fields: Fields) -> list[str]:
    stops = fields.texts("stop", _MAX_STOPS)
    for stop in stops:
        if not 0 < len(stop) <= _MAX_STOP_CHARACTERS:
            text = f"each must have 1 to {_MAX_STOP_CHARACTERS} characters, got {len(stop)}"
            raise invalid(f"Invalid 'stop': {text}", "stop")
    return stops


def _token_ids(fields: Fields) -> list[int] | None:
    found = fields.items("stop_token_ids", _MAX_STOP_IDS)
    if found is not None and not all(type(each) is int and 0 <= each <= _INT32 for each in found):
        raise invalid("Invalid 'stop_token_ids': expected token ids", "stop_token_ids")
    return found


def _biases(fields: Fields) -> dict[str, float] | None:
    given = fields.take("logit_bias")
    if given is None:
        return None
    name = "logit_bias"
    if not isinstance(given, dict):
        raise wrong_type(name, "an object", given)
    if len(given) > _MAX_BIASES:
        raise invalid(f"Invalid '{name}': must have at most {_MAX_BIASES} tokens, got {len(given)}", name)
    for token, bias in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise invalid(f"Invalid '{name}': {said(token)} is no token id", name)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise invalid(f"Invalid '{name}.{token}': must be from -100 to 100, got {said(bias)}", name)
    return given or None


def read_choices(fields: Fields, prompts: int) -> int:
    """Return the number of continuations of each prompt.

    Raises:
        OpenAIError: there are too many together.
    """
    count = fields.integer("n", 1, MAX_CHOICES) or 1
    if count * prompts > MAX_CHOICES:
        text = f"must be at most {MAX_CHOICES // max(prompts, 1)} with {prompts} prompts, got {count}"
        raise invalid(f"Invalid 'n': {text}", "n")
    return count
