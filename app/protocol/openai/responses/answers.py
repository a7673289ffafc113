"""Answers of `/v1/responses`: an object with items, or the events by which it comes to be. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from app.core.encoding import to_json
from app.core.errors import ErrorCode, Failure, InferError, internal
from app.core.system.random_ids import random_id
from app.protocol.openai.logprobs import Drawn, Token, chat_logprobs
from app.protocol.openai.texts.answers import Head, Part, Stream

_encode: Final = msgspec.json.Encoder().encode
_MAX_CHARACTERS: Final = 16 << 20
"""Of a stream's texts, which its last events repeat."""
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_CODES: Final = {
    ErrorCode.RESOURCE_EXHAUSTED: "rate_limit_exceeded",
    ErrorCode.INVALID_ARG: "invalid_prompt",
}
_ITEM: Final = {"message": "msg_", "function_call": "fc_"}


class ResponseForm(NamedTuple):
    """What an answer looks like; `echoed` are fields of the request."""

    echoed: Mapping[str, Any]
    prefix: str = "resp_"

    def whole(self, head: Head, parts: Sequence[Part], usage: dict[str, Any]) -> bytes:
        """Return the body of an answer in one piece."""
        (part,) = parts
        status = "incomplete" if part.reason in _INCOMPLETE else "completed"
        items = [_call_item(call, status) for call in part.calls]
        if part.text or not items:
            items.insert(0, _message_item(part.text, _drawn_of(part), status))
        return _encode(_response(head, self.echoed, items, part.reason, usage))

    def stream(self, head: Head, usage: bool) -> Stream:
        """Return what makes a stream."""
        return _Events(head, self.echoed)


def _drawn_of(part: Part) -> list[Drawn]:
    """Return the tokens of a text, without those of calls behind it."""
    length, found = 0, list[Drawn]()
    for one in part.drawn:
        if part.calls and length >= len(part.text):
            break
        length += len(one.token.text)
        found.append(one)
    return found


def _response(
    head: Head,
    echoed: Mapping[str, Any],
    items: Sequence[Mapping[str, Any]],
    reason: str,
    usage: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the object; `reason` is why its text ended, "" before that, and "failed" where it has failed."""
    ended = "failed" if reason == "failed" else "incomplete" if reason in _INCOMPLETE else "completed"
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": ended if reason else "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": _INCOMPLETE[reason]} if reason in _INCOMPLETE else None,
        "model": head.model,
        "output": items,
        "previous_response_id": None,
        "truncation": "disabled",
        "usage": None if usage is None else _usage(usage),
        **echoed,
    }


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


def _message_item(text: str, drawn: Sequence[Drawn], status: str) -> dict[str, Any]:
    item = {"id": _new_id("message"), "type": "message", "status": status, "role": "assistant"}
    return item | {"content": [_content(text, drawn)]}


def _content(text: str, drawn: Sequence[Drawn]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": _logprobs(drawn)}


def _logprobs(drawn: Sequence[Drawn]) -> list[dict[str, Any]]:
    found = chat_logprobs(drawn)
    return [] if found is None else found["content"]


def _call_item(call: Mapping[str, Any], status: str) -> dict[str, Any]:
    """Return an item of a call that is whole, or begins, as a chat has it."""
    item = {"id": _new_id("function_call"), "type": "function_call", "status": status}
    return item | {"call_id": call["id"], **call["function"]}


def _new_id(kind: str) -> str:
    return f"{_ITEM[kind]}{random_id()}"


class _Events:
    """The events of a stream, in which one item is open at a time."""

    def __init__(self, head: Head, echoed: Mapping[str, Any]) -> None:
        self._head = head
        self._echoed = echoed
        self._items: list[dict[str, Any]] = []
        self._number = 0
        self._open = False
        self._pieces: list[str] = []
        self._drawn: list[Drawn] = []
        self._left = _MAX_CHARACTERS
        self._reason = ""

    def begin(self, openings: Sequence[str]) -> bytes:
        """Return the first events; chats have no openings."""
        return self._of_all("created") + self._of_all("in_progress")

    def part(self, part: Part) -> bytes:
        """Return the events of a piece of the text, and of the end of the last item."""
        self._left -= len(part.text) + sum(len(call["function"]["arguments"]) for call in part.calls)
        if self._left < 0:
            raise internal("the model's texts are too long")
        found = self._text(part) if part.text or (part.drawn and not part.calls) else b""
        found += b"".join([self._call(call) for call in part.calls])
        if part.reason:
            self._reason = part.reason
            found += (b"" if self._items else self._begin_message()) + self._close()
        return found

    def end(self, usage: dict[str, Any]) -> bytes:
        """Return the last event, with all of the response."""
        status = "incomplete" if self._reason in _INCOMPLETE else "completed"
        return self._of_all(status, usage)

    def fail(self, error: Failure | InferError) -> bytes:
        """Return the last event of a stream that fails."""
        if self._open:
            self._items[-1]["status"] = "incomplete"
        response = _response(self._head, self._echoed, self._items, "failed", None)
        response["error"] = {"code": _CODES.get(error.code, "server_error"), "message": error.message}
        return self._event("failed", {"response": response})

    def _text(self, part: Part) -> bytes:
        found = b""
        if not (self._open and self._items[-1]["type"] == "message"):
            found = self._close() + self._begin_message()
        self._pieces.append(part.text)
        self._drawn += part.drawn
        delta = {"delta": part.text, "logprobs": _told(part.drawn), **self._place()}
        return found + self._event("output_text.delta", delta)

    def _begin_message(self) -> bytes:
        item = _message_item("", (), "in_progress") | {"content": []}
        found = self._begin(item)
        return found + self._event("content_part.added", {"part": _content("", ()), **self._place()})

    def _call(self, delta: Mapping[str, Any]) -> bytes:
        found, arguments = b"", delta["function"]["arguments"]
        if "id" in delta:
            begun = {**delta, "function": {**delta["function"], "arguments": ""}}
            found = self._close() + self._begin(_call_item(begun, "in_progress"))
        if arguments:
            self._pieces.append(arguments)
            found += self._event("function_call_arguments.delta", {"delta": arguments, **self._place()})
        return found

    def _begin(self, item: dict[str, Any]) -> bytes:
        self._open, self._pieces, self._drawn = True, [], []
        self._items.append(item)
        return self._event("output_item.added", {"output_index": len(self._items) - 1, "item": item})

    def _close(self) -> bytes:
        """End the open item, if there is one."""
        if not self._open:
            return b""
        self._open = False
        item, text = self._items[-1], "".join(self._pieces)
        item["status"] = "incomplete" if self._reason in _INCOMPLETE else "completed"
        if item["type"] == "message":
            content = _content(text, self._drawn)
            item["content"] = [content]
            done = {"text": text, "logprobs": _told(self._drawn), **self._place()}
            found = self._event("output_text.done", done)
            found += self._event("content_part.done", {"part": content, **self._place()})
        else:
            item["arguments"] = text
            found = self._event("function_call_arguments.done", {"arguments": text, **self._place()})
        return found + self._event("output_item.done", {"output_index": len(self._items) - 1, "item": item})

    def _place(self) -> dict[str, Any]:
        item = self._items[-1]
        place = {"item_id": item["id"], "output_index": len(self._items) - 1}
        return place | ({"content_index": 0} if item["type"] == "message" else {})

    def _of_all(self, kind: str, usage: dict[str, Any] | None = None) -> bytes:
        response = _response(self._head, self._echoed, self._items, self._reason, usage)
        return self._event(kind, {"response": response})

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        document = to_json({"type": f"response.{kind}", "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: response.%b\ndata: %b\n\n" % (kind.encode(), document)


def _told(drawn: Sequence[Drawn]) -> list[dict[str, Any]]:
    """Return tokens as events have them, without their bytes."""
    return [{**_token(one.token), "top_logprobs": [_token(each) for each in one.top]} for one in drawn]


def _token(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob}
