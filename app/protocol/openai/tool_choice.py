"""The tools of a request, which of them may or must be called, and what that forces a text to be."""

import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple

import msgspec

from app.core.config.text_models import TextModel
from app.protocol.openai.errors import OpenAIError, invalid, refused
from app.protocol.openai.fields import Fields, as_text, said, wrong_type
from app.protocol.openai.tools.parsers import PARSERS, Named, Parser, Required

MAX_TOOLS: Final = 128
MAX_SCHEMA_BYTES: Final = 64 << 10
"""Of what guides a text."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MODES: Final = ("none", "auto", "required")
_ANY: Final = {"type": "object"}
_WHERE: Final = "tool_choice"


class Tools(NamedTuple):
    """The tools of a request.

    Attributes:
        definitions: as the template gets them.
        names: of those that may be called.
        mode: "none"; "auto", where the text decides; "required", one of them; "named", the only one.
        form: how the model writes calls, a key of PARSERS; "" where no call is looked for.
        single: only one call is wanted.
    """

    definitions: list[dict[str, Any]]
    names: tuple[str, ...] = ()
    mode: str = "none"
    form: str = ""
    single: bool = False

    @property
    def forced(self) -> bool:
        """Whether a schema makes the text a call."""
        return self.mode in ("required", "named")

    def parser(self, limit: int) -> Parser | None:
        """Return what finds calls in a text; None where it may have none."""
        if self.mode == "none":
            return None
        kind = {"required": Required, "named": Named}.get(self.mode) or PARSERS[self.form]
        return kind(self.names, limit, single=self.single)

    def guide(self) -> dict[str, Any] | None:
        """Return what forces a call, as vLLM's `structured_outputs`; None where nothing does.

        Raises:
            OpenAIError: the schemas are too large.
        """
        if not self.forced:
            return None
        chosen = [each["function"] for each in self.definitions if each["function"]["name"] in self.names]
        if self.mode == "named":
            schema = chosen[0].get("parameters") or _ANY
        else:
            schema = {"anyOf": [_call_schema(each, f"/anyOf/{at}") for at, each in enumerate(chosen)]}
        size = len(msgspec.json.encode(schema))
        if size > MAX_SCHEMA_BYTES:
            raise invalid(f"Invalid 'tools': a call is forced by at most {MAX_SCHEMA_BYTES} bytes", "tools")
        return {"json": schema}

    def reason(self, reason: str, calls: int) -> str:
        """Return why a text with so many calls ended, as OpenAI says it."""
        return "tool_calls" if calls and self.mode != "named" and reason == "stop" else reason


def read_tools(fields: Fields, text: TextModel, form: str) -> Tools:
    """Read `tools`, `tool_choice` and `parallel_tool_calls`.

    Args:
        fields: of the request.
        text: the model.
        form: how models write calls whose settings do not say it; "" for none.

    Raises:
        OpenAIError: a field is not allowed, or the model cannot do it.
    """
    form = text.settings.tool_parser or form
    given = fields.items("tools", MAX_TOOLS) or []
    definitions = [_definition(each, f"tools[{at}]") for at, each in enumerate(given)]
    single = not fields.flag("parallel_tool_calls", True)
    choice = fields.take(_WHERE)
    names = [each["function"]["name"] for each in definitions]
    for name in names:
        if names.count(name) > 1:
            raise invalid(f"Invalid 'tools': there are several of the name '{name}'", "tools")
    mode, allowed = _chosen(choice, names)
    found = Tools(definitions, allowed, mode, form, single)
    if found.forced and text.format != "vllm":
        raise refused(_WHERE, "by this model, which cannot be guided")
    if mode == "auto" and not form:
        raise invalid(_without_parser(choice), "tools" if choice is None else _WHERE)
    return found


def _without_parser(choice: Any) -> str:
    """Return the text of Triton's front."""
    subject = "having tools in the request" if choice is None else '"auto" tool choice'
    return f"{subject} requires --tool-call-parser to be set"


def _definition(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise wrong_type(where, "an object", given)
    kind = given.get("type")
    if kind != "function":
        raise refused(f"{where}.type", f"{said(kind)}: only functions are")
    function = given.get("function")
    if not isinstance(function, dict):
        raise wrong_type(f"{where}.function", "an object", function)
    _check_name(function.get("name"), f"{where}.function.name")
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        raise wrong_type(f"{where}.function.parameters", "an object", parameters)
    return given


def _check_name(given: Any, where: str) -> str:
    name = as_text(given, where)
    if not _NAME.fullmatch(name):
        raise invalid(f"Invalid '{where}': must be 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.'", where)
    return name


def _chosen(choice: Any, names: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Return the mode of a choice, and the names that may be called."""
    if choice is None:
        return ("auto" if names else "none"), tuple(names)
    if isinstance(choice, str):
        if choice not in _MODES:
            raise _unknown(choice)
        if choice == "required" and not names:
            raise _without_tools('"required" tool choice')
        return (choice if names else "none"), tuple(names)
    if not isinstance(choice, dict):
        raise wrong_type(_WHERE, "a text or an object", choice)
    if choice.get("type") == "allowed_tools":
        return _allowed(choice.get("allowed_tools"), names)
    name = _name_of(choice, _WHERE)
    if not names:
        raise _without_tools("Named tool choice")
    return "named", (_known(name, names),)


def _allowed(given: Any, names: Collection[str]) -> tuple[str, tuple[str, ...]]:
    where = f"{_WHERE}.allowed_tools"
    if not isinstance(given, dict) or not isinstance(given.get("tools"), list):
        raise invalid(f"Invalid '{where}': expected an object with 'mode' and 'tools'", where)
    mode = given.get("mode")
    if mode not in ("auto", "required"):
        text = f"must be one of 'auto', 'required', got {said(mode)}"
        raise invalid(f"Invalid '{where}.mode': {text}", f"{where}.mode")
    if not 0 < len(given["tools"]) <= MAX_TOOLS:
        raise invalid(f"Invalid '{where}.tools': must have 1 to {MAX_TOOLS} items", f"{where}.tools")
    chosen = [_name_of(each, f"{where}.tools[{at}]") for at, each in enumerate(given["tools"])]
    return mode, tuple(dict.fromkeys(_known(name, names) for name in chosen))


def _name_of(given: Any, where: str) -> str:
    """Return the name of a function that is meant by `{"type": "function", "function": {"name": ...}}`."""
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or given.get("type") != "function":
        raise invalid(f"Invalid '{where}': expected a function", where)
    return as_text(function.get("name"), f"{where}.function.name")


def _known(name: str, names: Collection[str]) -> str:
    if name not in names:
        raise invalid(f"Invalid '{_WHERE}': 'tools' has no function {said(name)}", _WHERE)
    return name


def _unknown(choice: str) -> OpenAIError:
    known = ", ".join(f"'{mode}'" for mode in _MODES)
    return invalid(f"Invalid '{_WHERE}': must be one of {known}, or an object, got {said(choice)}", _WHERE)


def _without_tools(subject: str) -> OpenAIError:
    """Return the error in the words of Triton's front."""
    return invalid(f"{subject} requires CreateChatCompletionRequest.tools to be provided", "tools")


def _call_schema(function: dict[str, Any], pointer: str) -> dict[str, Any]:
    """Return the schema of a call's object, `pointer` being its place in the whole."""
    arguments = function.get("parameters") or _ANY
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _moved(arguments, f"#{pointer}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose references to itself lead to its place in another one."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for key, value in schema.items()
    }
