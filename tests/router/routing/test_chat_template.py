from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.messages import Message
from router.routing.chat_template import (
    AddedToken,
    ChatTemplate,
    TemplateBroken,
    TokenizerFile,
    load_template,
)

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message['role'] == 'user' %}\n"
    "[INST] {{ message['content'] | trim }} [/INST]\n"
    "    {% elif message['role'] == 'assistant' %}\n"
    "{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}\n"
    "    {% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}\n"
    "{% endfor %}\n"
)
FANCY = (
    "{%- set ns = namespace(count=0) -%}\n"
    "{%- if tools is not none -%}TOOLS{%- endif -%}\n"
    "{%- for message in messages -%}\n"
    "    {%- if message.role == 'system' -%}{%- continue -%}{%- endif -%}\n"
    "    {%- set ns.count = ns.count + 1 -%}\n"
    "    {{- message | tojson -}}{{- message | tojson(indent=2) -}}\n"
    "    {%- if ns.count >= 3 -%}{%- break -%}{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{{- strftime_now('%Y') | length -}}{{ missing is defined }}\n"
)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "user", "content": ' <b>&"quotes"\' \n é 😀 '}, {"role": "assistant", "content": "x"}],
    [{"role": "user", "content": f"turn {n}"} for n in range(5)],
]


@pytest.mark.parametrize("template", [CHATML, LLAMA2, FANCY])
@pytest.mark.parametrize("messages", CHATS)
def test_prompts_are_rendered_as_transformers_renders_them(
    template: str, messages: list[dict[str, Any]]
) -> None:
    options: dict[str, Any] = {"add_generation_prompt": True, **TOKENS}
    rendered = render_jinja_template(conversations=[messages], chat_template=template, **options)
    assert ChatTemplate(template, TOKENS).render(messages) == rendered[0][0]


def refuses(template: str, messages: list[dict[str, Any]]) -> InflightError:
    with pytest.raises(InflightError) as caught:
        ChatTemplate(template, TOKENS).render(messages)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
    return caught.value


def test_a_template_that_refuses_messages_says_why() -> None:
    error = refuses(LLAMA2, [{"role": "system", "content": "x"}])
    assert "Only user and assistant roles are supported!" in error.message
    assert error.param == "messages"


def test_a_template_error_is_the_requests_fault() -> None:
    refuses("{{ messages[5].content.upper() }}", CHATS[0])


@pytest.mark.parametrize(
    "template",
    ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ raise_exception.__globals__.os }}"],
)
def test_a_template_cannot_escape_its_sandbox(template: str) -> None:
    refuses(template, CHATS[0])


def write(directory: Path, config: dict[str, Any]) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_field_that_is_called_like_a_method_does_not_hide_it() -> None:
    template = ChatTemplate("{{ messages[0].get('role') }} {{ messages[0].name }} {{ messages[0].nothing }}.")
    assert template.render([{"role": "user", "get": "mine", "name": "me"}]) == "user me ."


def test_the_template_file_comes_before_the_one_in_the_config(tmp_path: Path) -> None:
    write(tmp_path, {"chat_template": "config", "bos_token": {"content": "<s>"}, "eos_token": None})
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}{{ eos_token }}")
    template = load_template(tmp_path)
    assert template is not None
    assert template.render(CHATS[0]) == "file <s>"


def test_of_several_templates_the_default_is_used(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    write(tmp_path, {"chat_template": templates})
    template = load_template(tmp_path)
    assert template is not None
    assert template.render(CHATS[0]) == "yes"


def test_a_checkpoint_may_have_no_template(tmp_path: Path) -> None:
    assert load_template(tmp_path) is None
    write(tmp_path, {"bos_token": "<s>"})
    assert load_template(tmp_path) is None


def test_a_broken_checkpoint_is_named_at_start(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TemplateBroken, match=r"tokenizer_config\.json is not valid JSON"):
        load_template(tmp_path)
    write(tmp_path, {"chat_template": "{% for %}"})
    with pytest.raises(TemplateBroken, match="does not compile"):
        load_template(tmp_path)


# As Llava's, which reads nothing but parts, and as Qwen2-VL's, which reads both.
PARTS = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{{ '\n' }}{% endfor %}"
)
BOTH = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<|image_pad|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}"
)
SHOWN = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]


@pytest.mark.parametrize(
    ("source", "sees"), [(PARTS, True), (BOTH, True), (CHATML, False), (LLAMA2, False), (FANCY, False)]
)
def test_a_template_sees_if_an_image_makes_a_difference_to_it(source: str, sees: bool) -> None:
    assert ChatTemplate(source, TOKENS).sees is sees


def test_a_template_that_prints_what_it_does_not_understand_does_not_see() -> None:
    assert not ChatTemplate("{{ messages[0].content }}").sees


def test_texts_become_parts_for_a_template_that_reads_nothing_else() -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]
    assert ChatTemplate(PARTS).render(chat) == "user: hi\nassistant: Hello\n"
    assert ChatTemplate(PARTS).render(chat, continues=True).endswith("assistant: Hello")
    assert ChatTemplate(PARTS).render(SHOWN) == "user: <image>What is it?\n"
    assert ChatTemplate(BOTH).render([*SHOWN, *chat]) == "<|image_pad|>What is it?\nhi\nHello\n"


def test_the_template_of_a_processor_comes_before_that_of_its_tokenizer(tmp_path: Path) -> None:
    write(tmp_path, {"chat_template": "tokenizer"})
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    template = load_template(tmp_path)
    assert template is not None
    assert template.render(CHATS[0]) == "processor"


def test_a_long_text_without_control_is_rendered_quickly_and_one_full_of_it_is_not() -> None:
    template = ChatTemplate(
        "{{ messages[0].content }}", None, TokenizerFile((AddedToken("<user>", special=True),))
    )
    long = "word " * 20_000
    assert template.renders_quickly([Message("user", long + "<user>" * 100), Message("assistant", None)])
    assert not template.renders_quickly([Message("user", "hi"), Message("user", "<user>" * 300)])
