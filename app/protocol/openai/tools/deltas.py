"""Calls of a text as OpenAI's answers have them: whole in a message, piece by piece in a stream."""

import secrets
import string
from typing import Any, Final

from app.core.system.random_ids import random_id
from app.protocol.openai.tools.events import Arguments, Call, Content
from app.protocol.openai.tools.parsers import Parser

_LETTERS: Final = string.ascii_letters + string.digits
_MISTRAL_LENGTH: Final = 9


def new_id(form: str) -> str:
    """Return the id of a call; templates of Mistral's models take nine letters and digits alone."""
    if form == "mistral":
        return "".join(secrets.choice(_LETTERS) for _ in range(_MISTRAL_LENGTH))
    return f"call_{random_id()[:24]}"


class CallReader:
    """Takes the calls out of a text.

    Args:
        parser: finds them.
        form: how the model writes them.

    Attributes:
        calls: of a message, so far.
    """

    def __init__(self, parser: Parser, form: str) -> None:
        self.calls: list[dict[str, Any]] = []
        self._parser = parser
        self._form = form
        self._pieces: list[list[str]] = []

    @property
    def too_long(self) -> bool:
        """Whether the calls exceed their limit, and the text is to end."""
        return self._parser.too_long

    def push(self, text: str, final: bool) -> tuple[str, list[dict[str, Any]]]:
        """Return what the next piece of the text adds: to the content, and to `tool_calls` of a delta."""
        events = self._parser.feed(text) + (self._parser.end() if final else [])
        content, deltas = "", list[dict[str, Any]]()
        for event in events:
            match event:
                case Content(piece):
                    content += piece
                case Call(place, name):
                    deltas.append(self._begun(place, name))
                case Arguments(place, piece):
                    self._pieces[place].append(piece)
                    if deltas and deltas[-1]["index"] == place:
                        deltas[-1]["function"]["arguments"] += piece
                    else:
                        deltas.append({"index": place, "function": {"arguments": piece}})
        return content, deltas

    def _begun(self, place: int, name: str) -> dict[str, Any]:
        call_id = new_id(self._form)
        function = {"name": name, "arguments": ""}
        self.calls.append({"id": call_id, "type": "function", "function": dict(function)})
        self._pieces.append([])
        return {"index": place, "id": call_id, "type": "function", "function": function}

    def whole(self) -> list[dict[str, Any]]:
        """Return `tool_calls` of a message."""
        for call, pieces in zip(self.calls, self._pieces, strict=True):
            call["function"]["arguments"] = "".join(pieces)
        return self.calls
