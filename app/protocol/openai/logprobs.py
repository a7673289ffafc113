"""How probable tokens were: vLLM's report in the shapes of chats and completions. No I/O.

The report is a JSON array with an object for each token: by token id its `logprob`, `rank` and
`decoded_token`. The first key is the token that was drawn; its rank may be any.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from app.core.errors import internal

_LEAST: Final = -9999.0
"""What stands for an impossible token: JSON has no infinity."""
_PART: Final = "\N{REPLACEMENT CHARACTER}"


class Token(NamedTuple):
    """A token and the logarithm of its probability."""

    text: str
    logprob: float


class Drawn(NamedTuple):
    """A token of a text, and the most probable ones in its place, the most probable first."""

    token: Token
    top: list[Token]


def read_logprobs(report: str, most: int) -> list[Drawn]:
    """Return the tokens of a report.

    Args:
        report: as JSON; "" for none.
        most: the number of most probable tokens that are wanted.

    Raises:
        InferError: INTERNAL, the report is none.
    """
    try:
        found = json.loads(report) if report else None  # it may have -Infinity, which is no JSON
        return [_drawn(each, most) for each in found or () if each]
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise internal("the model's report of log probabilities is not as that of vLLM's backend") from None


def _drawn(candidates: dict[str, dict[str, Any]], most: int) -> Drawn:
    tokens = [_token(each) for each in candidates.values()]
    ranked = sorted(candidates.values(), key=lambda each: int(each.get("rank") or 0) or len(candidates) + 1)
    return Drawn(tokens[0], [_token(each) for each in ranked[:most]])


def _token(fields: dict[str, Any]) -> Token:
    logprob = float(fields["logprob"])
    return Token(str(fields.get("decoded_token") or ""), max(logprob, _LEAST) if logprob <= 0 else 0.0)


def chat_logprobs(drawn: Sequence[Drawn]) -> dict[str, Any] | None:
    """Return `logprobs` of a message or of its piece; None for no tokens."""
    if not drawn:
        return None
    content = [
        {**_described(one.token), "top_logprobs": [_described(each) for each in one.top]} for one in drawn
    ]
    return {"content": content, "refusal": None}


def _described(token: Token) -> dict[str, Any]:
    # Of a token that is a part of a character the report has not the bytes.
    known = None if _PART in token.text else list(token.text.encode())
    return {"token": token.text, "logprob": token.logprob, "bytes": known}


def completion_logprobs(drawn: Sequence[Drawn], offset: int) -> dict[str, Any] | None:
    """Return `logprobs` of a completion or of its piece; None for no tokens.

    Args:
        drawn: tokens.
        offset: characters of the choice's text in front of them.
    """
    if not drawn:
        return None
    return {
        "text_offset": list(_offsets(drawn, offset)),
        "token_logprobs": [one.token.logprob for one in drawn],
        "tokens": [one.token.text for one in drawn],
        # Of two tokens with one text the more probable one counts.
        "top_logprobs": [{each.text: each.logprob for each in reversed(one.top)} for one in drawn],
    }


def _offsets(drawn: Sequence[Drawn], offset: int) -> Iterator[int]:
    for one in drawn:
        yield offset
        offset += len(one.token.text)
