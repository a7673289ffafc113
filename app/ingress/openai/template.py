"""Chats as prompts, for models that take text alone: templates of Jinja, in a sandbox.

What templates may use is what transformers gives them. A request chooses the messages, the tools, and the
arguments that its model's settings allow; never the template.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from json import dumps
from time import monotonic, sleep
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
_FREE_S: Final = 0.05
"""Time of a template in which it does not pause."""
_LINES: Final = 100
"""Lines of Python between two looks at the clock, and two pauses: some 20 us."""
_PAUSE_S: Final = 0.0005
_MAX_PROMPT: Final = 16 << 20
"""Characters of a prompt: a template may write more than it is given."""
_MAX_SHORT: Final = 16 << 10
"""Bytes of a request that may be rendered on the event loop."""
_SHORT_STEPS: Final = 3000
"""Lines of Python that this may take: some 0.25 ms."""
Trace = Callable[[FrameType, str, Any], Any]


class _Refused(Exception):
    """What a template says of the messages."""


class _TooLong(BaseException):
    """A template runs for too long; nothing that it runs catches this."""


class Renderer:
    """Makes prompts by one template: of short chats at once, of others in a thread.

    Nobody knows how long a template takes. One that is not through after some lines starts over in a
    thread, and so do from then on chats of requests as long as this.
    """

    def __init__(self) -> None:
        self._short: int | None = (
            None  # bytes of a request below which it is tried; None until it is compiled
        )

    async def prompt(
        self, template: ChatTemplate, chat: Mapping[str, Any], strip_bos: bool, size: int
    ) -> str:
        """Return the prompt of a chat; see `render`. `size` is that of the request, in bytes."""
        if self._short is not None and size < self._short:
            try:
                return _render(template, chat, strip_bos, _MAX_PROMPT, _after(_SHORT_STEPS))
            except _TooLong:
                self._short = size
        prompt = await asyncio.to_thread(render, template, chat, strip_bos)
        if self._short is None:
            self._short = _MAX_SHORT
        return prompt


@lru_cache(_MAX_KNOWN)
def renderer_of(template: str) -> Renderer:
    """Return the renderer of a template, by its source."""
    return Renderer()


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
    try:
        return _render(template, chat, strip_bos, limit, _until(monotonic() + seconds))
    except _TooLong:
        raise invalid("Invalid 'messages': the model's chat template takes too long", "messages") from None


def _render(template: ChatTemplate, chat: Mapping[str, Any], strip_bos: bool, limit: int, ends: Trace) -> str:
    arguments = chat.get("arguments", {})
    given = {**template.tokens, **arguments, "messages": chat["messages"], "tools": chat.get("tools")}
    before = sys.gettrace()
    sys.settrace(ends)
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
    """Return what ends a template at one of its next lines, once its time is over.

    One that takes long pauses again and again: the event loop waits for the interpreter while it runs. It
    is seen by no other thread.
    """
    steps, patient = 0, monotonic() + _FREE_S

    def trace(frame: FrameType, event: str, given: Any) -> Trace:
        nonlocal steps
        steps += 1
        if not steps % _LINES:
            now = monotonic()
            if now > end:
                raise _TooLong
            if now > patient:
                sleep(_PAUSE_S)
        return trace

    return trace


def _after(steps: int) -> Trace:
    """Return what ends a template after so many lines, whatever else the machine does meanwhile."""
    left = steps

    def trace(frame: FrameType, event: str, given: Any) -> Trace:
        nonlocal left
        left -= 1
        if left < 0:
            raise _TooLong
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
