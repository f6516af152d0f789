from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from batchrun.errors import RowError, UsageError
from batchrun.records import Request, Row, Sampling
from batchrun.source.templates import Template, chat_messages, reads_nothing, with_system

ROW = Row(index=0, file="a.jsonl", line=1)


def render(source: str, **columns: Any) -> str:
    return Template(source, "--prompt").render(columns)


def fault_of(source: str, **columns: Any) -> RowError:
    with pytest.raises(RowError) as caught:
        render(source, **columns)
    return caught.value


def test_columns_fill_the_template() -> None:
    text = render(
        "{{ a }} {{ b.c[0] }} {{ when.year }} {{ '<b>' }}",
        a=1,
        b={"c": ["é"]},
        when=datetime(2020, 1, 1),
    )
    assert text == "1 é 2020 <b>"


def test_column_whose_name_is_no_word_is_reached_through_the_row() -> None:
    assert render('{{ row["review text"] }}', **{"review text": "good"}) == "good"


@pytest.mark.parametrize(
    ("prompt", "system", "is_so"),
    [
        ("Label {{ empty }}.", None, True),
        ("{{ empty }} {{ blank }}", "Be {{ empty }}", True),
        ("{{ empty }} {{ word }}", None, False),
        ("{{ empty }}", "{{ word }}", False),
        ("{{ empty }} {{ zero }}", None, False),
        ("say hi", None, False),
        ('{{ row["empty"] }}', None, False),
    ],
)
def test_data_of_which_nothing_is_there(prompt: str, system: str | None, is_so: bool) -> None:
    columns = {"empty": "", "blank": " \n", "word": "a", "zero": 0}
    templates = (Template(prompt, "--prompt"), Template(system, "--system") if system else None)

    assert reads_nothing(columns, *templates) == is_so


def test_column_named_row_is_the_column() -> None:
    assert render("{{ row }}", row=7) == "7"


@pytest.mark.parametrize("source", ["{{ a }", "{% for %}", "{{ a | nothing }}", "{% if a %}"])
def test_template_that_does_not_compile_is_a_usage_error(source: str) -> None:
    with pytest.raises(UsageError, match=r"^--prompt: .* \(line 1\)$"):
        Template(source, "--prompt")


def test_missing_column_is_a_fault_naming_those_there_are() -> None:
    error = fault_of("{{ reveiw }}", id=1, review="good", gone=None)
    assert (error.code, error.param) == ("missing_column", "prompt")
    assert error.message == "--prompt: 'reveiw' is undefined; the row has id, review"


def test_null_column_counts_as_missing() -> None:
    assert fault_of("{{ a }}", a=None).code == "missing_column"
    assert fault_of("{{ a.b }}", a={"b": None}).code == "missing_column"
    assert render("{{ a | default('x') }}{{ b.c is defined }}", a=None, b={"c": None}) == "xFalse"


@pytest.mark.parametrize(
    "source",
    [
        "{{ a + 1 }}",
        "{{ 1 / 0 }}",
        "{{ a | round }}",
        "{{ a.encode('nothing') }}",
        "{{ a[1:2:0] }}",
        "{{ a | dictsort }}",
        "{{ (a * 9) | truncate(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_template_that_fails_on_a_row_is_its_fault(source: str) -> None:
    assert fault_of(source, a="text").code == "template_error"


@pytest.mark.parametrize(
    "source",
    [
        "{{ a.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ a.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '%s' | attr('format') }}{{ a.__init__ }}",
    ],
)
def test_templates_are_sandboxed(source: str) -> None:
    values = [1]
    assert fault_of(source, a=values).code in ("template_error", "missing_column")
    assert values == [1]


def test_columns_used_are_known() -> None:
    source = "{% set x = a %}{{ x }}{{ b.c }}{% for d in range(2) %}{{ d }}{% endfor %}"
    assert Template(source, "--prompt").columns == {"a", "b"}
    assert Template('{{ row["a"] }}', "--prompt").columns is None


def test_prompt_makes_a_user_message_behind_the_system_message() -> None:
    system = Template("Answer in {{ lang }}.", "--system")
    assert chat_messages({"a": "x", "lang": "French"}, Template("{{ a }}", "--prompt"), system) == [
        {"role": "system", "content": "Answer in French."},
        {"role": "user", "content": "x"},
    ]


def test_system_without_text_is_left_out() -> None:
    system = Template("{% if lang is defined %}{{ lang }}{% endif %}", "--system")
    messages = chat_messages({"a": "x"}, Template("{{ a }}", "--prompt"), system)
    assert [message["role"] for message in messages] == ["user"]


def test_prompt_without_text_is_a_fault() -> None:
    with pytest.raises(RowError, match="empty") as caught:
        chat_messages({"a": " \n"}, Template("{{ a }}", "--prompt"), None)
    assert caught.value.code == "invalid_request"


def chat(*roles: str) -> Request:
    messages = [{"role": role, "content": role} for role in roles]
    return Request(row=ROW, sampling=Sampling(), messages=messages)


def test_system_goes_before_the_messages_of_a_chat_row() -> None:
    before = chat("user")
    after = with_system(before, {"lang": "fr"}, Template("In {{ lang }}.", "--system"))
    assert after.messages == [
        {"role": "system", "content": "In fr."},
        {"role": "user", "content": "user"},
    ]
    assert before == chat("user")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_message_of_the_row_itself_is_kept(role: str) -> None:
    assert with_system(chat(role, "user"), {}, Template("s", "--system")) == chat(role, "user")


def test_system_on_a_completion_is_a_fault_with_remedy() -> None:
    completion = Request(row=ROW, sampling=Sampling(), prompt="a")
    with pytest.raises(RowError, match="--prompt"):
        with_system(completion, {}, Template("s", "--system"))
