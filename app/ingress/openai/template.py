"""Chats as prompts, for models that take text alone: templates of Jinja, in a sandbox.

What templates may use is what transformers gives them. A request chooses the messages, the tools, and the
arguments that its model's settings allow; never the template.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from json import dumps
from time import monotonic
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.core.chat_templates import ChatTemplate
from app.protocol.openai.errors import OpenAIError, invalid

_MAX_KNOWN: Final = 64
"""Compiled templates that are kept."""
_RENDER_S: Final = 10.0
_MAX_RANGES: Final = 1_000_000
"""Numbers of all ranges of a template."""
_MAX_PROMPT: Final = 16 << 20
"""Characters of a prompt: a template may write more than it is given."""


_left: Final[ContextVar[int]] = ContextVar("left")
"""Numbers that ranges of the template that is rendered may have yet."""


class _Refused(Exception):
    """What a template says of the messages."""


def render(template: ChatTemplate, chat: Mapping[str, Any], strip_bos: bool, limit: int = _MAX_PROMPT) -> str:
    """Return the prompt of a chat.

    Args:
        template: of the model.
        chat: `messages`, and where there are some, `tools` and `arguments`.
        strip_bos: the tokenizer of the model adds the token that begins a text.
        limit: characters of the prompt.

    Raises:
        OpenAIError: the template refuses the messages, or fails.
    """
    arguments = chat.get("arguments", {})
    given = {**template.tokens, **arguments, "messages": chat["messages"], "tools": chat.get("tools")}
    _left.set(_MAX_RANGES)
    ends = monotonic() + _RENDER_S
    try:
        pieces, size = [], 0
        for piece in _compiled(template.source).generate(add_generation_prompt=True, documents=None, **given):
            size += len(piece)
            if size > limit:
                raise invalid(f"Invalid 'messages': the prompt has more than {limit} characters", "messages")
            if monotonic() > ends:
                raise _Refused(f"it takes more than {_RENDER_S:g} s")
            pieces.append(piece)
    except OpenAIError:
        raise
    except (_Refused, TemplateError) as error:
        raise invalid(f"Invalid 'messages': the model's chat template says: {error}", "messages") from None
    except Exception as error:  # of what the template does with messages that it did not expect
        raise invalid(f"Invalid 'messages': the model's chat template fails: {error}", "messages") from None
    prompt, bos = "".join(pieces), template.tokens.get("bos_token", "")
    return prompt.removeprefix(bos) if strip_bos else prompt


@lru_cache(_MAX_KNOWN)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    environment.globals["range"] = _range
    return environment.from_string(source)


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _range(*bounds: int) -> range:
    found = range(*bounds)
    _left.set(_left.get() - len(found))
    if _left.get() < 0:
        raise _Refused(f"its ranges have more than {_MAX_RANGES} numbers")
    return found


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    # Not Jinja's filter, which escapes for HTML.
    return dumps(value, ensure_ascii=False, indent=indent)
