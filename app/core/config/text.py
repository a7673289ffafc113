"""Parsers of `ModelConfig`: `config.pbtxt` (protobuf text format) and the JSON of a load request.

Every error names the place, the expectation and a correction.
"""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from google.protobuf import json_format, symbol_database, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.lenient_json import as_strict
from app.core.errors import InferError, internal, invalid_arg

MAX_CONFIG_BYTES: Final = 4 << 20
"""Maximum size of a configuration. Real ones have a few KiB; the text parser needs a second for a MiB."""

_NO_FIELD: Final = re.compile(r'Message type "([\w.]+)" has no field named "([^"]*)"')
_NO_VALUE: Final = re.compile(r'Enum type "([\w.]+)" has no value (?:named|with number) (\S+?)\.?$')
_NO_JSON_VALUE: Final = re.compile(r"Invalid enum value (\S*) for enum type ([\w.]+)")
_REPEATED: Final = re.compile(r'Message type "[\w.]+" should not have multiple "(\w+)" (?:extensions|fields)')
_ONEOF: Final = re.compile(r'Field "(\w+)" is specified along with field "(\w+)"')
_POSITION: Final = re.compile(r"^\d+:\d+ : ")
_QUOTED_LINE: Final = re.compile(r"^'.*': (?=[A-Z])", re.DOTALL)
_BOM: Final = "\ufeff"
PLACEHOLDER: Final = re.compile(r"\$\{\w*\}?")
PLACEHOLDER_HINT: Final = (
    "this is a template: put a value in place of '${...}' (Triton's tools/fill_template.py does, or sed)."
)
_FIELDS_NAMED: Final = 40
_LONGEST_SENTENCE: Final = 500
_SYNTAX_ADVICE: Final = (
    "Write fields as 'name: value' or 'name { ... }', lists as '[ a, b ]', and close every bracket and quote."
)
# The first pattern found in the parser's sentence selects the advice.
_ADVICE: Final = (
    (re.compile(r"out of range"), "Use a number that fits the field."),
    (re.compile(r"parse (integer|float|double)|number|invalid literal"), "Write a number, without quotes."),
    (re.compile(r"Expected string"), "Put the text in quotes."),
    (re.compile(r'Expected "true" or "false"|[Bb]ool'), "Write true or false, without quotes."),
    (re.compile(r"oneof fields"), "Keep one of them."),
    (re.compile(r"must be in \[\]"), "Put the value in a list: [ ... ]."),
    (re.compile(r"utf-8|surrogate", re.IGNORECASE), "Write the text in UTF-8."),
)


def parse_pbtxt(text: str, source: str) -> mc.ModelConfig:
    """Parse a `config.pbtxt`.

    Args:
        text: the file's text.
        source: the file's path, for the error.

    Raises:
        InferError: INTERNAL, as Triton; the text begins "failed to read text proto from <source>" and goes on
            with line, column, expectation and correction.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise _unreadable(source, f"the file is larger than {MAX_CONFIG_BYTES} bytes; shorten it")
    config = mc.ModelConfig()
    text = text.removeprefix(_BOM)
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        where = f"line {error.GetLine()}, column {error.GetColumn()}: " if error.GetLine() else ""
        foreign = _foreign(text, error.GetLine() or 0)
        raise _unreadable(source, where + (foreign or _explain(str(error)))) from None
    except (RecursionError, UnicodeError, ValueError) as error:
        raise _unreadable(source, f"{type(error).__name__}: {error}") from None
    return config


def _foreign(text: str, line: int) -> str:
    """Return what is wrong with a line that is written for another program than a reader of this format."""
    lines = text.split("\n")
    found = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    if found.startswith(("//", "/*")):
        return "a comment begins with '#', not with '//'."
    return PLACEHOLDER_HINT if PLACEHOLDER.search(found) else ""


def _unreadable(source: str, detail: str) -> InferError:
    return internal(f"failed to read text proto from {source}: {detail}")


def _explain(text: str) -> str:
    """Return the parser's first sentence and advice for it."""
    # The parser repeats the line in front of some sentences; the error has its number already.
    sentence = _QUOTED_LINE.sub("", _POSITION.sub("", text), count=1)
    what = (sentence.strip().splitlines() or ["not a model configuration"])[0][:_LONGEST_SENTENCE]
    return f"{what.rstrip('.')}. {_advice(what)}".rstrip()


def _advice(what: str) -> str:
    if match := _NO_FIELD.search(what):
        return _suggest(match[2], [field.name for field in _fields(match[1])], "field")
    if match := _NO_VALUE.search(what):
        return _suggest(match[2], _enum_names(match[1]), "value")
    if match := _NO_JSON_VALUE.search(what):
        return _suggest(match[1], _enum_names(match[2]), "value")
    if match := _REPEATED.search(what):
        return f"Give '{match[1]}' once."
    if match := _ONEOF.search(what):
        return f"Keep either '{match[1]}' or '{match[2]}'."
    # Sentences of the JSON parser begin so; the grammar of config.pbtxt does not apply to them.
    otherwise = "" if what.startswith("Failed to parse ") else _SYNTAX_ADVICE
    return next((advice for pattern, advice in _ADVICE if pattern.search(what)), otherwise)


def _suggest(given: str, known: Iterable[str], kind: str) -> str:
    names = sorted(known)
    by_lower = {name.lower(): name for name in names}
    close = get_close_matches(given.lower(), by_lower, n=1, cutoff=0.6)
    # "FP32" for TYPE_FP32 and "CPU" for KIND_CPU are common, and too short for a close match.
    ending = [name for name in names if given and name.lower().endswith("_" + given.lower())]
    if best := (ending[:1] or [by_lower[found] for found in close]):
        return f"Did you mean '{best[0]}'?"
    shown = ", ".join(names[:_FIELDS_NAMED])
    return f"Use a {kind} it has: {shown}." if names else f"Remove the {kind}."


def _fields(message: str) -> list[FieldDescriptor]:
    try:
        return list(symbol_database.Default().pool.FindMessageTypeByName(message).fields)
    except KeyError:
        return []


def _enum_names(enum: str) -> list[str]:
    try:
        return [value.name for value in symbol_database.Default().pool.FindEnumTypeByName(enum).values]
    except KeyError:
        return []


def _json_document(text: str) -> Any:
    try:
        try:
            return json.loads(text, object_pairs_hook=_unique_keys)
        except json.JSONDecodeError:
            return json.loads(as_strict(text), object_pairs_hook=_unique_keys)
    except RecursionError:
        raise _bad_override("the JSON is nested too deeply") from None
    except ValueError as error:
        raise _bad_override(f"not valid JSON: {error}") from None


def parse_config_json(text: str) -> mc.ModelConfig:
    """Parse the `config` parameter of a load request: the JSON form of `ModelConfig`.

    Unknown fields are refused; enum names may have any case; 64-bit numbers may be numbers or strings. As in
    Triton names need no quotes, quotes may be single, and a comma may follow the last element.

    Raises:
        InferError: INVALID_ARG, "Invalid config override: " and the reason.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise _bad_override(f"the configuration is larger than {MAX_CONFIG_BYTES} bytes")
    document = _json_document(text)
    if not isinstance(document, dict):
        raise _bad_override("expected a JSON object with the fields of a model configuration")
    config = mc.ModelConfig()
    try:
        json_format.ParseDict(_strict(document, mc.ModelConfig.DESCRIPTOR), config)
    except (json_format.Error, RecursionError, TypeError, ValueError) as error:
        raise _bad_override(_explain(str(error))) from None
    return config


def _bad_override(detail: str) -> InferError:
    return invalid_arg(f"Invalid config override: {detail}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key '{next(name for name in names if names.count(name) > 1)[:100]}'")
    return result


def _strict(value: Any, message: Descriptor) -> Any:
    """Return the value with enum names in upper case, and a list where a field is repeated.

    The C++ parser that Triton uses accepts any case, and a single value for a list of one; Python's does not.
    """
    if not isinstance(value, dict):
        return value
    known = {name: field for field in message.fields for name in (field.name, field.json_name)}
    return {name: _strict_field(item, known.get(name)) for name, item in value.items()}


def _strict_field(value: Any, field: FieldDescriptor | None) -> Any:
    if field is None:
        return value
    if not field.is_repeated or _is_map(field):
        return _strict_value(value, field)
    if isinstance(value, list):
        return [_strict_value(item, field) for item in value]
    fits = value is not None and isinstance(value, dict) == (field.message_type is not None)
    return [_strict_value(value, field)] if fits else value


def _strict_value(value: Any, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return value.upper() if isinstance(value, str) else value
    if field.message_type is None:
        return value
    if _is_map(field):
        entry = field.message_type.fields_by_name["value"]
        is_dict = isinstance(value, dict)
        return {key: _strict_value(item, entry) for key, item in value.items()} if is_dict else value
    return _strict(value, field.message_type)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
