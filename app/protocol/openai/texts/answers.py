"""Answers of chats and completions: one JSON object, or chunks of a stream. No I/O."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from app.core.encoding import to_json
from app.core.errors import Failure, InferError
from app.protocol.openai.errors import error_object
from app.protocol.openai.logprobs import Drawn, chat_logprobs, completion_logprobs
from app.protocol.openai.texts.choices import Choice

_encode: Final = msgspec.json.Encoder().encode
DONE: Final = b"data: [DONE]\n\n"


class Head(NamedTuple):
    """What all chunks of an answer have.

    Attributes:
        id: of the answer.
        created: seconds since the epoch.
        model: as the client names it.
        system_fingerprint: of the version that answers.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str


class Part(NamedTuple):
    """What a choice gets.

    Attributes:
        choice: its number.
        text: may be empty.
        reason: why it ends; "" where it goes on.
        drawn: its tokens with their probabilities; empty where none are wanted.
        offset: characters of the choice in front of it.
        calls: of tools, as the member `tool_calls` of a message or a delta.
    """

    choice: int
    text: str
    reason: str = ""
    drawn: Sequence[Drawn] = ()
    offset: int = 0
    calls: Sequence[Any] = ()


class Stream(Protocol):
    """Makes the events of a stream; one for each answer."""

    def begin(self, openings: Sequence[str]) -> bytes:
        """Return what comes first; `openings` precede the texts of the choices."""

    def part(self, part: Part) -> bytes:
        """Return what a choice gets; b"" for nothing.

        Raises:
            InferError: the texts are too long.
        """

    def end(self, usage: dict[str, Any]) -> bytes:
        """Return the end, with the tokens of the answer; see `usage_of`."""

    def fail(self, error: Failure | InferError) -> bytes:
        """Return the end of a stream that fails."""


class Form(Protocol):
    """What an answer looks like."""

    @property
    def prefix(self) -> str:
        """Of its id."""

    def whole(self, head: Head, parts: Sequence[Part], usage: dict[str, Any]) -> bytes:
        """Return the body of an answer in one piece."""

    def stream(self, head: Head, usage: bool) -> Stream:
        """Return what makes a stream, which ends with its tokens if `usage` is wanted."""


class ChoicesForm(NamedTuple):
    """An object with choices, as of chats and completions.

    Attributes:
        prefix: of its id.
        object, chunk: what it is called, whole and in a stream.
        chat: its choices are messages, not texts.
    """

    prefix: str
    object: str
    chunk: str
    chat: bool

    def whole(self, head: Head, parts: Sequence[Part], usage: dict[str, Any]) -> bytes:
        """Return the body of an answer in one piece."""
        choices = [_message(part) if self.chat else _text(part) for part in parts]
        fields = head._asdict()
        answer = {"id": fields.pop("id"), "object": self.object, **fields, "choices": choices, "usage": usage}
        return _encode(answer)

    def stream(self, head: Head, usage: bool) -> Stream:
        """Return what makes a stream."""
        return _Chunks(self, head, usage)


CHAT: Final = ChoicesForm("chatcmpl-", "chat.completion", "chat.completion.chunk", True)
COMPLETION: Final = ChoicesForm("cmpl-", "text_completion", "text_completion", False)


def fingerprint(content: str) -> str:
    """Return the `system_fingerprint` of a version, by the digest of its files and configuration."""
    return f"fp_{content[:10]:0<10}"


def usage_of(choices: Sequence[Choice], each: int) -> dict[str, Any]:
    """Return the tokens of an answer; `each` choices are of one prompt, which counts once."""
    prompts = choices[::each]
    read = sum(choice.input_tokens for choice in prompts)
    written = sum(choice.output_tokens for choice in choices)
    found: dict[str, Any] = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
    cached = [choice.cached_tokens for choice in prompts if choice.cached_tokens is not None]
    if cached:
        found["prompt_tokens_details"] = {"cached_tokens": sum(cached)}
    return found


def _message(part: Part) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": part.text, "refusal": None}
    if part.calls:
        message |= {"content": part.text or None, "tool_calls": part.calls}
    return {
        "index": part.choice,
        "message": message,
        "logprobs": chat_logprobs(part.drawn),
        "finish_reason": part.reason,
    }


def _text(part: Part) -> dict[str, Any]:
    return {
        "index": part.choice,
        "text": part.text,
        "logprobs": completion_logprobs(part.drawn, part.offset),
        "finish_reason": part.reason or None,
    }


class _Chunks:
    """The events of a stream of choices.

    Args:
        form: of the answer.
        head: of each chunk.
        usage: whether the stream ends with its tokens.
    """

    def __init__(self, form: ChoicesForm, head: Head, usage: bool) -> None:
        self._chat = form.chat
        self._usage = usage
        fields = head._asdict()
        whole = _encode({"id": fields.pop("id"), "object": form.chunk, **fields})
        self._before = b'data: %b,"choices":[' % whole[:-1]
        self._after = b'],"usage":null}\n\n' if usage else b"]}\n\n"

    def begin(self, openings: Sequence[str]) -> bytes:
        """Return the first chunks of all choices in order: clients make a list of them."""
        return b"".join([self._role(at) + self.part(Part(at, text)) for at, text in enumerate(openings)])

    def _role(self, index: int) -> bytes:
        """Return the first chunk of a choice; b"" for a completion, which has none."""
        if not self._chat:
            return b""
        return self._delta(index, b'{"role":"assistant","content":""}')

    def part(self, part: Part) -> bytes:
        """Return the chunks of what a choice gets; b"" for nothing."""
        if not self._chat:
            return self._of(_encode(_text(part))) if part.text or part.drawn or part.reason else b""
        found = b""
        if part.text or part.calls or part.drawn:
            delta: dict[str, Any] = {} if part.calls and not part.text else {"content": part.text}
            if part.calls:
                delta["tool_calls"] = part.calls
            found = self._delta(part.choice, _encode(delta), part.drawn)
        if part.reason:
            ending = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"}'
            found += self._of(ending % (part.choice, part.reason.encode()))
        return found

    def end(self, usage: dict[str, Any]) -> bytes:
        """Return the end of a stream, with its tokens if they are wanted."""
        if not self._usage:
            return DONE
        before = self._before.removesuffix(b"[")
        return b'%b[],"usage":%b}\n\n' % (before, _encode(usage)) + DONE

    def fail(self, error: Failure | InferError) -> bytes:
        """Return the end of a stream that fails."""
        return b"data: %b\n\n" % to_json({"error": error_object(error)}) + DONE

    def _delta(self, index: int, delta: bytes, drawn: Sequence[Drawn] = ()) -> bytes:
        known = _encode(chat_logprobs(drawn)) if drawn else b"null"
        return self._of(b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}' % (index, delta, known))

    def _of(self, choice: bytes) -> bytes:
        return b"".join((self._before, choice, self._after))
