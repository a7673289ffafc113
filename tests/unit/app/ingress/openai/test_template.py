"""Chat templates: what they may use, what they may not, and that they end."""

import pytest

from app.core.chat_templates import ChatTemplate
from app.ingress.openai.template import render
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
