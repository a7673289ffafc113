"""Chats as prompts, for models that take text alone: templates of Jinja, in a sandbox.

What templates may use is what transformers gives them. A request chooses the messages, the tools, and the
arguments that its model's settings allow; never the template.
"""

import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from json import dumps
from time import monotonic
from types import FrameType
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.core.chat_templates import ChatTemplate
from app.protocol.openai.errors import OpenAIError, invalid

_MAX_KNOWN: Final = 64
"""Compiled templates that are kept."""
_RENDER_S: Final = 5.0
_MAX_PROMPT: Final = 16 << 20
"""Characters of a prompt: a template may write more than it is given."""
Trace = Callable[[FrameType, str, Any], Any]


class _Refused(Exception):
    """What a template says of the messages."""


def render(
    template: ChatTemplate,
    chat: Mapping[str, Any],
    strip_bos: bool,
    limit: int = _MAX_PROMPT,
    seconds: float = _RENDER_S,
) -> str:
    """Return the prompt of a chat.

    Args:
        template: of the model.
        chat: `messages`, and where there are some, `tools` and `arguments`.
        strip_bos: the tokenizer of the model adds the token that begins a text.
        limit: characters of the prompt.
        seconds: that it may take.

    Raises:
        OpenAIError: the template refuses the messages, fails, or does not end.
    """
    arguments = chat.get("arguments", {})
    given = {**template.tokens, **arguments, "messages": chat["messages"], "tools": chat.get("tools")}
    before = sys.gettrace()
    sys.settrace(_until(monotonic() + seconds))
    try:
        prompt = _rendered(template.source, given, limit)
    except OpenAIError:
        raise
    except (_Refused, TemplateError) as error:
        raise invalid(f"Invalid 'messages': the model's chat template says: {error}", "messages") from None
    except Exception as error:  # of what the template does with messages that it did not expect
        raise invalid(f"Invalid 'messages': the model's chat template fails: {error}", "messages") from None
    finally:
        sys.settrace(before)
    return prompt.removeprefix(template.tokens.get("bos_token", "")) if strip_bos else prompt


def _rendered(source: str, given: Mapping[str, Any], limit: int) -> str:
    pieces, size = [], 0
    for piece in _compiled(source).generate(add_generation_prompt=True, documents=None, **given):
        size += len(piece)
        if size > limit:
            raise _Refused(f"a prompt of more than {limit} characters")
        pieces.append(piece)
    return "".join(pieces)


def _until(end: float) -> Trace:
    """Return what ends a template at its next line, once its time is over: it is seen by no other thread."""

    def trace(frame: FrameType, event: str, given: Any) -> Trace:
        if monotonic() > end:
            raise _Refused("it takes too long")
        return trace

    return trace


@lru_cache(_MAX_KNOWN)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment.from_string(source)


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    # Not Jinja's filter, which escapes for HTML.
    return dumps(value, ensure_ascii=False, indent=indent)
