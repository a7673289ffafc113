"""Reading the fields of a request: one after the other, each checked, until none is left.

A field that is null is as one that is missing. No I/O.
"""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any, Final

import msgspec

from app.core.errors import InferError
from app.core.tensors import Buffer
from app.protocol.http import strict_json
from app.protocol.openai.errors import OpenAIError, invalid, refused, too_large

MAX_NAME: Final = 256
"""Characters of the name of a model, or of who uses it."""
MAX_OBJECTS: Final = 1 << 15
"""Arrays and objects of a body, or of the arguments of a call: 8,192 messages of one part have 24,578."""
MAX_VALUES: Final = 1 << 18
"""Commas of either, outside texts: whoever reads a body has the interpreter for as long as that takes."""
_SAID: Final = 64
"""Characters of a value that an error repeats."""


def parse_body(body: Buffer, limit: int) -> dict[str, Any]:
    """Return the fields of a body, which is a JSON object of at most `limit` bytes.

    Raises:
        OpenAIError: it is larger, no JSON, no object, or nested too deeply.
    """
    if len(body) > limit:
        raise too_large(len(body), limit)
    try:
        document = parse_json(body)
    except ValueError as error:
        raise invalid(f"We could not parse the JSON body of your request: {error}") from None
    if not isinstance(document, dict):
        raise invalid("The JSON body of your request is not an object")
    return document


def parse_json(text: Buffer | str) -> Any:
    """Return a JSON document of limited depth and number of values; its texts are valid UTF-8.

    Raises:
        ValueError: it is none.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        strict_json.check_values(data, b"[{", MAX_OBJECTS)
        strict_json.check_values(data, b",", MAX_VALUES)
        document = msgspec.json.decode(text)
        strict_json.check_depth(document)
    except InferError as error:
        raise ValueError(error.message) from None
    except RecursionError:
        raise ValueError(strict_json.too_deep().message) from None
    return document


class Fields:
    """The fields of an object of a request; each reader removes its own.

    Args:
        values: of the object.
        path: in front of the names in errors, as `stream_options.`.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._left = {name: value for name, value in values.items() if value is not None}
        self._path = path

    def has(self, name: str) -> bool:
        """Return whether a field is there and was not read yet."""
        return name in self._left

    def left(self) -> dict[str, Any]:
        """Return the fields that nobody has read."""
        return self._left

    def take(self, name: str) -> Any:
        """Return a field as it is; None if it is missing."""
        return self._left.pop(name, None)

    def drop(self, names: Collection[str]) -> None:
        """Ignore fields."""
        for name in names:
            self._left.pop(name, None)

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Refuse fields that are there, by their names with what to do instead.

        Raises:
            OpenAIError: one is there.
        """
        for name, why in reasons.items():
            if name in self._left:
                raise refused(self._path + name, why)

    def text(self, name: str, default: str = "", limit: int = 0) -> str:
        """Return a text, of at most so many characters; 0 for any number."""
        value = self._left.pop(name, None)
        if value is None:
            return default
        found = as_text(value, self._path + name)
        if limit and len(found) > limit:
            raise self._wrong(name, f"must have at most {limit} characters, got {len(found)}")
        return found

    def required_text(self, name: str, limit: int = 0) -> str:
        """Return a text that must be there, and not be empty."""
        self.require(name)
        found = self.text(name, limit=limit)
        if not found:
            raise self._wrong(name, "must not be empty")
        return found

    def require(self, name: str) -> None:
        """Refuse a request without a field.

        Raises:
            OpenAIError: it is missing.
        """
        if name not in self._left:
            raise invalid(f"Missing required parameter: '{self._path}{name}'", self._path + name)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self._left.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong_type(name, "a boolean", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Return an integer of a range; None if it is missing."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise self._wrong_type(name, "an integer", value)
        if not low <= value <= high:
            raise self._wrong(name, f"must be from {low} to {high}, got {said(value)}")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number of a range; None if it is missing."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong_type(name, "a number", value)
        if not isfinite(value) or not low <= value <= high:
            raise self._wrong(name, f"must be from {low:g} to {high:g}, got {said(value)}")
        return float(value)

    def choice(self, name: str, choices: Collection[str]) -> str:
        """Return one of some texts."""
        found = self.text(name)
        if found and found not in choices:
            known = ", ".join(f"'{each}'" for each in choices)
            raise self._wrong(name, f"must be one of {known}, got {said(found)}")
        return found

    def object(self, name: str) -> "Fields | None":
        """Return the fields of an object; None if it is missing."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong_type(name, "an object", value)
        return Fields(value, f"{self._path}{name}.")

    def items(self, name: str, limit: int) -> list[Any] | None:
        """Return an array of at most so many items; None if it is missing."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong_type(name, "an array", value)
        if len(value) > limit:
            raise self._wrong(name, f"must have at most {limit} items, got {len(value)}")
        return value

    def texts(self, name: str, limit: int) -> list[str]:
        """Return a text, or an array of at most so many texts, as a list."""
        value = self._left.pop(name, None)
        if value is None:
            return []
        given = value if isinstance(value, list) else [value]
        if len(given) > limit:
            raise self._wrong(name, f"must have at most {limit} items, got {len(given)}")
        single = not isinstance(value, list)
        where = self._path + name
        return [as_text(each, where if single else f"{where}[{at}]") for at, each in enumerate(given)]

    def _wrong(self, name: str, what: str) -> OpenAIError:
        where = self._path + name
        return invalid(f"Invalid '{where}': {what}", where)

    def _wrong_type(self, name: str, wanted: str, value: Any) -> OpenAIError:
        return wrong_type(self._path + name, wanted, value)


def wrong_type(where: str, wanted: str, value: Any) -> OpenAIError:
    """Return the error of a field of another type."""
    return invalid(f"Invalid type for '{where}': expected {wanted}, got {said(value)}", where)


def as_text(value: Any, where: str) -> str:
    """Return a text.

    Raises:
        OpenAIError: it is none.
    """
    if not isinstance(value, str):
        raise wrong_type(where, "a text", value)
    return value


def said(value: Any) -> str:
    """Return a value as errors repeat it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = repr(value)
    return text if len(text) <= _SAID else f"{text[:_SAID]}..."
