"""Chat templates: what they may use, what they may not, and that they end."""

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from app.core.chat_templates import ChatTemplate
from app.ingress.openai.template import Renderer, render
from app.protocol.openai.errors import OpenAIError

CHAT = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "ü <b>"}]}
LLAMA = """{{ bos_token }}{% for message in messages %}
<{{ message.role }}>{{ message.content }}</>
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def test_a_chat_becomes_a_prompt_without_the_token_that_the_tokenizer_adds() -> None:
    template = ChatTemplate(LLAMA, {"bos_token": "<s>"})
    assert render(template, CHAT, True) == "<system>s</>\n<user>ü <b></>\n<assistant>"
    assert render(template, CHAT, False).startswith("<s><system>")


def test_templates_have_what_those_of_the_hub_use() -> None:
    source = (
        "{%- set ns = namespace(n=0) -%}{%- for m in messages -%}"
        "{%- if m.role == 'system' -%}{%- continue -%}{%- endif -%}"
        "{%- set ns.n = ns.n + 1 -%}{{ m | tojson }}{%- endfor -%}{{ ns.n }}"
        "{{ strftime_now('%Y') | length }}{{ range(3) | list }}{{ tools[0].name }}{{ thinking }}"
    )
    chat = CHAT | {"tools": [{"name": "f"}], "arguments": {"thinking": True}}
    wanted = '{"role": "user", "content": "ü <b>"}14[0, 1, 2]fTrue'
    assert render(ChatTemplate(source), chat, True) == wanted


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for", "says"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[7].content.x }}", "no element 7"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}", "too long"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{% for a in range(100000) %}{{ 'x' * 100000 }}{% endfor %}", "characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails"),
    ],
)
def test_what_a_template_may_not_is_an_error_of_the_request(source: str, text: str) -> None:
    with pytest.raises(OpenAIError, match="Invalid 'messages'") as error:
        render(ChatTemplate(source), CHAT, True, seconds=0.3)
    assert text in error.value.message and error.value.param == "messages"


def test_a_template_that_does_not_end_leaves_most_of_its_time_to_others() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    began = time.thread_time()
    with pytest.raises(OpenAIError, match="too long"):
        render(ChatTemplate(endless), CHAT, True, seconds=1.0)
    assert time.thread_time() - began < 0.5


async def _threads(source: str, *sizes: int) -> list[bool]:
    """Return of chats of so many bytes whether each was rendered on the loop in the end."""
    renderer, found = Renderer(), []
    for size in sizes:
        own = list[bool]()

        def where(own: list[bool] = own) -> str:
            own.append(threading.current_thread() is threading.main_thread())
            return ""

        chat: Mapping[str, Any] = CHAT | {"arguments": {"where": where, "size": size}}
        await renderer.prompt(ChatTemplate("{{ where() }}" + source), chat, True, size)
        found.append(own[-1])
    return found


def test_short_chats_are_rendered_on_the_loop_once_the_template_is_compiled() -> None:
    assert asyncio.run(_threads("", 100, 100, 15_000, 20_000, 100)) == [False, True, True, False, True]


def test_a_template_that_takes_long_goes_to_a_thread_and_so_do_chats_as_long() -> None:
    source = "{% if size > 50 %}{% for a in range(2000) %}{{ a }}{% endfor %}{% endif %}"
    assert asyncio.run(_threads(source, 10, 90, 10, 70, 80, 60)) == [False, False, True, False, False, False]


def test_errors_of_a_template_on_the_loop_are_those_of_a_thread() -> None:
    async def texts() -> list[str]:
        renderer, found = Renderer(), []
        template = ChatTemplate("{{ raise_exception('no') if messages | length > 1 }}")
        await renderer.prompt(template, {"messages": []}, True, 10)
        for size in (10, 20_000):
            with pytest.raises(OpenAIError) as error:
                await renderer.prompt(template, CHAT, True, size)
            found.append(error.value.message)
        return found

    first, second = asyncio.run(texts())
    assert first == second == "Invalid 'messages': the model's chat template says: no"
