"""Chat templates of somebody who wants to hold the router up: each is given up, and none makes a huge value.

Without the budget these take from minutes to for ever, or all memory.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.routing.chat_template import ChatTemplate, TemplateBroken
from router.routing.models import ServedModel
from router.routing.template_sandbox import MOST_CHARS, TemplateOverrun
from tests.fakes.pipeline import FakePipeline
from tests.router.running import RunningRouter, running_router

ASKED = [{"role": "user", "content": "inflight"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set ns = namespace(a=START) %}{% for i in range(60) %}{% set ns.a = STEP %}{% endfor %}{{ ns.a }}"
)


def doubled(start: str, step: str) -> str:
    return DOUBLED.replace("START", start).replace("STEP", step)


@pytest.mark.parametrize(
    "template",
    [
        LOOP,
        "{% for a in range(99999) if false %}{% endfor %}" * 400 + LOOP,
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for x in [1] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}" + LOOP,
        "{% for a in range(99999) %}{% set x = range(99999)|map('string')|map('upper')|list %}{% endfor %}",
        "{% for a in range(99999) %}{{ range(99999)|select('in', range(99999)|list)|list }}{% endfor %}",
        "{% for a in range(99999) %}{{ range(99999)|list|join(',')|length }}{% endfor %}",
    ],
)
def test_a_template_that_does_not_come_to_an_end_is_given_up(template: str) -> None:
    assert "does not come to an end in time" in given_up(template)


@pytest.mark.parametrize(
    "template",
    [
        doubled("'ab'", "ns.a + ns.a"),
        doubled("'ab'", "ns.a ~ ns.a"),
        doubled("[1]", "ns.a + ns.a"),
        doubled("[1]", "[ns.a, ns.a]"),
        doubled("[1]", "[ns.a] + [ns.a]"),
        doubled("[1]", "(ns.a, ns.a)|list"),
        doubled("[1]", "{'a': ns.a, 'b': ns.a}"),
        doubled("[1]", "dict(a=ns.a, b=ns.a)"),
        doubled("[1]", "[1]|batch(3, ns.a)|list"),
        doubled("'ab'", "ns.a.replace('a', 'aa')"),
        doubled("'ab'", "ns.a|replace('a', 'aa')"),
        doubled("'a'", "ns.a|tojson"),
        doubled("'ab'", "[ns.a, ns.a]|join"),
        doubled("'ab'", "''.join([ns.a, ns.a])"),
        doubled("'ab'", "'%s%s' % (ns.a, ns.a)"),
        doubled("'ab'", "'{0}{0}'.format(ns.a)"),
        "{% set a = 'ab' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 60,
        "{% macro f(a) %}{{ a }}{{ a }}{% endmacro %}" + doubled("'ab'", "f(ns.a)"),
        "{{ 'x' * 10 ** 10 }}",
        "{{ 10 ** 10 * 'x' }}",
        "{{ [[]] * 10 ** 10 }}",
        "{{ 2 ** (10 ** 10) }}",
        "{% set ns = namespace(a=9) %}{% for i in range(60) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
        "{{ 'x'|center(10 ** 10) }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ 'x'.zfill(10 ** 10) }}",
        "{{ ('\\t' * 99999).expandtabs(99999) }}",
        "{{ ('x\\n' * 99999)|indent(99999) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10 ** 10, 1) }}",
        "{{ '%10000000000d'|format(1) }}",
        "{{ '{:>10000000000}'.format('x') }}",
        "{{ '{:>{w}}'.format('x', w='10000000000') }}",
        "{{ '{a:>10000000000}'.format_map({'a': 1}) }}",
        "{{ 1.5|round(10 ** 10) }}",
        "{{ [1]|slice(10 ** 10)|list }}",
        "{{ range(9999)|batch(1)|sum(start=[]) }}",
    ],
)
def test_a_template_whose_values_grow_without_end_is_given_up(template: str) -> None:
    assert "it " in given_up(template)


def given_up(source: str) -> str:
    template = ChatTemplate("{% if 'inflight' == messages[0].content %}" + source + "{% endif %}")
    with pytest.raises(InflightError) as caught:
        template.render(ASKED)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
    assert isinstance(caught.value.__cause__, TemplateOverrun), caught.value.__cause__
    return caught.value.message


@pytest.mark.parametrize(
    "call", ["(1).to_bytes(10 ** 10, 'big')", "{}.fromkeys(range(9), 1)", "'a'.translate({})"]
)
def test_methods_that_no_prompt_needs_cannot_be_called(call: str) -> None:
    with pytest.raises(InflightError, match="cannot call"):
        ChatTemplate("{{ " + call + " }}").render(ASKED)


def test_a_namespace_prints_nothing_of_what_it_holds() -> None:
    source = "{% set ns = namespace(a=1) %}" + "{% set ns = namespace(a=ns, b=ns) %}" * 60 + "{{ ns }}"
    assert ChatTemplate(source).render(ASKED) == "<Namespace>"


@pytest.mark.parametrize(
    "source",
    ["{% if true %}" * 500 + "{% endif %}" * 500, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", " " * 2**21],
)
def test_a_template_too_deep_or_too_long_to_compile_is_broken(source: str) -> None:
    with pytest.raises(TemplateBroken):
        ChatTemplate(source)


def test_a_block_cannot_have_a_budget_of_its_own() -> None:
    with pytest.raises(TemplateBroken, match="scoped blocks"):
        ChatTemplate(
            "{% block a %}{% block b scoped %}{{ self.a() }}{{ self.a() }}{% endblock %}{% endblock %}"
        )


def test_tools_that_are_nested_deeply_are_not_indented_without_end() -> None:
    value: Any = [0] * 20_000
    for _ in range(400):
        value = [value]
    template = ChatTemplate("{{ messages|length }}{{ tools|tojson(indent=60) if tools }}")
    with pytest.raises(InflightError, match="it makes a value of"):
        template.render(ASKED, [{"type": "function", "function": {"parameters": value}}])


def test_what_a_long_conversation_needs_is_allowed() -> None:
    template = ChatTemplate(
        "{% set ns = namespace(found=[], text='') %}{% for m in messages if m.role == 'user' %}"
        "{% set ns.found = ns.found + [m] %}{% set ns.text = ns.text + m.content|trim %}"
        "{{ '<s>' + m.content + m.content.split('b')[0] + '</s>' }}{% endfor %}{{ ns.found|length }}"
    )
    messages = [{"role": "user", "content": f"{n} abc " * 20} for n in range(300)]
    prompt = template.render(messages)
    assert prompt.endswith("300")
    assert prompt.count("<s>") == 300
    content = "x" * (MOST_CHARS // 16)
    assert template.render([{"role": "user", "content": content}]).count("x") == 2 * len(content)


def test_tojson_writes_what_json_writes() -> None:
    value = {"a": [1, "é"], "b": {"c": None}}
    messages = [{"role": "user", "content": [value]}]
    told = "messages[0].content[0]|tojson"
    assert ChatTemplate("{{ " + told + " }}").render(messages) == json.dumps(value, ensure_ascii=False)
    indented = ChatTemplate("{{ " + told + "(indent=2, sort_keys=true) }}").render(messages)
    assert indented == json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)


async def test_a_chat_that_sets_its_template_off_is_refused_and_the_router_goes_on() -> None:
    source = "{% if 'now' in messages[0].content %}" + LOOP + "{% endif %}{{ messages[0].content }}"
    hostile = ServedModel("hostile", FakePipeline(), ChatTemplate(source))
    async with running_router(others=[hostile]) as router:
        refused = await ask(router, "now")
        assert refused.status_code == 400
        assert "does not come to an end in time" in refused.json()["error"]["message"]
        assert (await ask(router, "hello")).status_code == 200


async def ask(router: RunningRouter, content: str) -> httpx.Response:
    body = {"model": "hostile", "messages": [{"role": "user", "content": content}]}
    return await router.http.post("/v1/chat/completions", json=body)
