"""Prompts by chat templates, and templates that would take for ever."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.openai.texts.chat_templates import render

STEPS = 20_000
CHATML = """\
{{ bos_token }}{% for message in messages %}
{%- if loop.first and message.role != 'system' %}<|im_start|>system\nBe nice<|im_end|>\n{% endif %}
<|im_start|>{{ message['role'] ~ '\n' + message.content | trim }}<|im_end|>
{% if loop.last and loop.length == 2 %}[{{ loop.length }}]{% endif %}
{% endfor %}
{% if tools %}{{ tools | tojson }}{% endif %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_usual_template() -> None:
    messages = [{"role": "user", "content": " <hi> "}, {"role": "assistant", "content": "é"}]
    prompt = render(
        CHATML,
        {"messages": messages, "tools": [{"a": "<é>"}], "bos_token": "<s>"},
        STEPS,
    )
    assert prompt is not None
    assert prompt.startswith("<s><|im_start|>system\nBe nice<|im_end|>\n")
    assert "<|im_start|>user\n<hi><|im_end|>" in prompt
    # Neither escapes for HTML, nor for other alphabets.
    assert '[{"a": "<é>"}]' in prompt
    assert "[2]" in prompt
    assert not prompt.endswith("assistant\n")


def test_time_json_and_arithmetic() -> None:
    source = (
        "{{ strftime_now('%Y') | int > 2000 }} {{ {'a': 1} | tojson(indent=2) }} {{ 2 * 3 + 1 }}"
        " {{ 'ab' * 2 }} {{ '%s!' % 'x' }} {{ [1] + [2] }} {{ 1.5 * 2 }} {{ 7 % 4 }}"
        "{% for a in [1, 2, 3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% endfor %}"
        "{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
        "{% generation %}{{ 1 ~ 'z' }}{% endgeneration %}"
    )
    assert render(source, {}, STEPS) == 'True {\n  "a": 1\n} 7 abab x! [1, 2] 3.0 313x11z'


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in messages * 9999 %}{% for b in messages * 9999 %}{% endfor %}{% endfor %}",
        "{% for a in 'xxxxxxxx' * 9999 %}{% endfor %}",
        "{% set n = namespace(s=x) %}{% for a in x * 99 %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s=x) %}{% for a in x * 99 %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ 'x' * 100000000 }}",
        "{{ 100000000 * [0] }}",
        "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
    ],
)
def test_a_template_that_takes_too_long_is_stopped(source: str) -> None:
    assert render(source, {"messages": [1, 2], "x": "a"}, STEPS) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('only two roles') }}", "refuses the messages: only two roles"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ 9 ** 9999999 }}", "not available"),
        ("{{ '%0999999999d' % 1 }}", "not available"),
        ("{% include 'x' %}", "no loader"),
        ("{% bad", "unknown tag"),
        ("{{ messages[9].x.y }}", "no element"),
        ("{{ 1 / 0 }}", "zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_templates_that_fail_are_named_in_the_error(source: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match="chat template") as refused:
        render(source, {"messages": []}, STEPS)
    assert reason in refused.value.message
