"""Requests of `/v1/completions`. No I/O."""

from typing import Any, Final

from app.core.config.text_models import TextModel
from app.protocol.openai.errors import invalid, refused
from app.protocol.openai.fields import Fields, as_text, wrong_type
from app.protocol.openai.texts.requests import Defaults, TextRequest, read_request
from app.protocol.openai.texts.sampling import MAX_CHOICES

_MAX_TOKENS: Final = 16
"""OpenAI's default."""
_MAX_LOGPROBS: Final = 20
_REFUSED: Final = {"suffix": "", "functions": "use tools", "function_call": "use tools"}


def read_completion(
    fields: Fields, text: TextModel, known: frozenset[str], defaults: Defaults
) -> TextRequest:
    """Read a request.

    Args:
        fields: of the request, without `model`.
        text: the model.
        known: its inputs.
        defaults: of the server.

    Raises:
        OpenAIError: a field is not allowed.
    """
    fields.refuse(_REFUSED)
    if (fields.integer("best_of", 0, MAX_CHOICES) or 1) > 1:
        raise refused("best_of", "give n, and choose")
    logprobs = fields.integer("logprobs", 0, _MAX_LOGPROBS)
    fields.require("prompt")
    prompts = _prompts(fields.take("prompt"))
    request = read_request(fields, text, known, prompts, defaults.max_tokens or _MAX_TOKENS)
    if request.echo and logprobs is not None:
        raise refused("echo", "with logprobs, as no model reports those of prompts")
    request.sampling.logprobs = logprobs
    return request


def _prompts(given: Any) -> list[str]:
    if isinstance(given, str):
        texts = [as_text(given, "prompt")]
    elif isinstance(given, list):
        if len(given) > MAX_CHOICES and not _is_ids(given):
            raise invalid(
                f"Invalid 'prompt': must have at most {MAX_CHOICES} items, got {len(given)}", "prompt"
            )
        if _is_ids(given):
            raise refused("prompt", "as token ids: the model takes text")
        texts = [as_text(each, f"prompt[{at}]") for at, each in enumerate(given)]
    else:
        raise wrong_type("prompt", "a text or an array of texts", given)
    if not texts or not all(texts):
        raise invalid("prompt must be non-empty", "prompt")
    return texts


def _is_ids(given: list[Any]) -> bool:
    first = given[0] if given else None
    return isinstance(first, list) or type(first) is int
