"""Chat templates: what reaches the model, and what a row is told when something would not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from batchrun.errors import RowError
from batchrun.prepare import Preparer
from batchrun.records import Failure, Prompt, Request
from tests.prepare.conftest import CHATML, chat, preparer, text_of, tokenizer, turn

USER = turn("user", "hello")
# As Llama 2's: its own BOS, strict turns.
STRICT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate\n user/assistant') }}{% endif %}"
    "{{ '[' + message['role'] + ']' + message['content'] | trim }}"
    "{% endfor %}"
)
IGNORES_SYSTEM = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% endif %}{% endfor %}"
)
WITH_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + CHATML
THINKING = CHATML + "{% if enable_thinking is false %}<no-thinking>{% endif %}"
CALLS = (
    "{% for message in messages %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{% for name, value in call.function.arguments | items %}{{ name }}={{ value }};{% endfor %}"
    "{% endfor %}{% endfor %}"
)
CALLS_AS_TEXT = CALLS.replace(
    "{% for name, value in call.function.arguments | items %}{{ name }}={{ value }};{% endfor %}",
    "{{ 'call:' + call.function.arguments }}",
)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def error_of(request: Request, template: str | None = CHATML) -> RowError:
    with pytest.raises(RowError) as caught:
        preparer(template).prepare(request)
    return caught.value


def history(arguments: Any) -> Request:
    function = {"name": "weather", "arguments": arguments}
    calls = [{"id": "1", "type": "function", "function": function}]
    return chat(USER, turn("assistant", "", tool_calls=calls), turn("tool", "sunny"))


def test_the_full_history_is_rendered_and_the_answer_opened() -> None:
    request = chat(turn("system", "be brief"), USER, turn("assistant", "hi"), turn("user", "é?"))
    text = "<|system|>be brief</s><|user|>hello</s><|assistant|>hi</s><|user|>é?</s><|assistant|>"
    assert text_of(request) == text


def test_the_model_sees_what_transformers_would_show_it() -> None:
    wrapped = tokenizer(WITH_TOOLS)
    expected = wrapped.apply_chat_template([USER], tools=[TOOL], add_generation_prompt=True)
    assert preparer(WITH_TOOLS).prepare(chat(USER, tools=[TOOL])).token_ids == expected


def test_parts_and_joined_text_give_the_same_prompt() -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert text_of(chat(turn("user", parts))) == text_of(chat(USER))


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_template_that_starts_with_bos_gives_one(adds_bos: bool) -> None:
    text = text_of(chat(USER), preparer(STRICT, adds_bos=adds_bos))
    assert text == "<s>[user]hello"


def test_bos_is_put_where_only_the_tokenizer_has_it() -> None:
    assert text_of(chat(USER), preparer(adds_bos=True)) == "<s>" + text_of(chat(USER))


def test_a_bos_written_twice_becomes_one() -> None:
    doubled = preparer("{{ bos_token }}" + STRICT, adds_bos=True)
    assert text_of(chat(USER), doubled) == "<s>[user]hello"


def test_no_template_is_told_with_its_remedy() -> None:
    error = error_of(chat(USER), None)
    assert error.code == "no_chat_template"
    assert "--chat-template" in error.message
    assert '"prompt"' in error.message


@pytest.mark.parametrize(
    "messages", [(USER, USER), (turn("system", "x"), USER), (turn("developer", "x"), USER)]
)
def test_a_template_that_refuses_the_roles_says_so_in_one_line(messages: Any) -> None:
    error = error_of(chat(*messages), STRICT)
    assert error.code == "template_error"
    assert error.message.endswith("Roles must alternate user/assistant")


def test_a_refused_row_leaves_its_neighbours_alone() -> None:
    using = preparer(STRICT)
    rows = [using.attempt(chat(*messages)) for messages in ((USER,), (USER, USER), (USER,))]
    assert isinstance(rows[1], Failure)
    assert isinstance(rows[0], Prompt)
    assert rows[0] == rows[2]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_template_that_ignores_system_text_fails_the_row(role: str) -> None:
    error = error_of(chat(turn(role, "be brief"), USER), IGNORES_SYSTEM)
    assert error.code == "template_ignores_message"
    assert error.param == "messages[0]"


def test_an_empty_system_message_may_be_ignored() -> None:
    assert text_of(chat(turn("system", " "), USER), preparer(IGNORES_SYSTEM)) == "<|user|>hello"


def test_a_later_system_message_is_not_lost_either() -> None:
    template = "{% for m in messages %}{% if m.role == 'user' or loop.first %}{{ m.content }}"
    request = chat(turn("system", "one"), USER, turn("system", "two"), USER)
    assert error_of(request, template + "{% endif %}{% endfor %}").param == "messages[2]"


def test_a_template_may_edit_the_system_text() -> None:
    template = "{% for m in messages %}{{ m.content | replace('/no_think', '') }}{% endfor %}"
    assert text_of(chat(turn("system", "/no_think"), USER), preparer(template)) == "hello"


def test_what_is_left_out_is_judged_for_each_shape_of_conversation() -> None:
    using = preparer(IGNORES_SYSTEM)
    system = chat(turn("system", "x"), USER)
    rows = [using.attempt(request) for request in (system, chat(USER), system, chat(USER))]
    assert [isinstance(row, Failure) for row in rows] == [True, False, True, False]


def test_tools_reach_the_template() -> None:
    assert '"weather"' in text_of(chat(USER, tools=[TOOL]), preparer(WITH_TOOLS))


def test_a_template_without_a_place_for_tools_fails_the_row() -> None:
    error = error_of(chat(USER, tools=[TOOL]))
    assert (error.code, error.param) == ("template_ignores_tools", "tools")
    assert text_of(chat(USER, tools=[])) == text_of(chat(USER))


def test_template_kwargs_are_the_rows_own() -> None:
    using = preparer(THINKING)
    texts = [
        text_of(chat(USER, template_kwargs=kwargs), using)
        for kwargs in ({"enable_thinking": False}, {"enable_thinking": True})
    ]
    assert ["<no-thinking>" in text for text in texts] == [True, False]


@pytest.mark.parametrize(
    "name",
    ["chat_template", "tokenize", "tools", "conversation", "messages", "return_dict", "self"],
)
def test_template_kwargs_cannot_take_over(name: str) -> None:
    error = error_of(chat(USER, template_kwargs={name: "{{ 1 }}"}))
    assert (error.code, error.param) == ("invalid_request", f"chat_template_kwargs.{name}")


def test_a_template_cannot_reach_the_process() -> None:
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    assert error_of(chat(USER), template).code == "template_error"


def test_a_last_assistant_message_is_answered_by_default() -> None:
    text = text_of(chat(USER, turn("assistant", "The answer is")))
    assert text.endswith("<|assistant|>The answer is</s><|assistant|>")


def test_a_last_assistant_message_is_continued_on_request() -> None:
    request = chat(
        USER, turn("assistant", "The answer is"), template_kwargs={"continue_final_message": True}
    )
    assert text_of(request).endswith("<|assistant|>The answer is")


def test_the_answer_is_left_unopened_on_request() -> None:
    request = chat(USER, template_kwargs={"add_generation_prompt": False})
    assert text_of(request) == "<|user|>hello</s>"


@pytest.mark.parametrize(
    "kwargs",
    [
        {"continue_final_message": True},
        {"continue_final_message": "content"},
        {"add_generation_prompt": 1},
    ],
)
def test_switches_that_cannot_work_are_refused(kwargs: dict[str, Any]) -> None:
    error = error_of(chat(USER, template_kwargs=kwargs))
    assert error.param == f"chat_template_kwargs.{next(iter(kwargs))}"


def test_both_switches_are_refused() -> None:
    kwargs = {"continue_final_message": True, "add_generation_prompt": True}
    error = error_of(chat(USER, turn("assistant", "x"), template_kwargs=kwargs))
    assert "cannot both be true" in error.message


def test_tool_arguments_in_a_string_reach_the_template_as_an_object() -> None:
    assert "city=Oslo;" in text_of(history('{"city": "Oslo"}'), preparer(CALLS))


def test_tool_arguments_stay_a_string_where_the_template_wants_one() -> None:
    text = text_of(history('{"city": "Oslo"}'), preparer(CALLS_AS_TEXT))
    assert 'call:{"city": "Oslo"}' in text


@pytest.mark.parametrize("depth", [50, 200, 400, 800, 2000, 100_000])
def test_tool_arguments_nested_deeply_fail_alone_at_most(depth: int) -> None:
    arguments = '{"a":' * depth + "1" + "}" * depth
    assert isinstance(preparer(CALLS).attempt(history(arguments)), Prompt | Failure)


def test_a_message_left_out_is_seen_beside_arguments_in_a_string() -> None:
    template = CALLS_AS_TEXT.replace("in messages", "in messages[:2]")
    assert error_of(history("{}"), template).param == "messages[2]"


@pytest.mark.parametrize("arguments", ["junk", "[1]", [1], 3, '{"a": "\\ud800"}'])
def test_tool_arguments_that_do_not_suit_fail_alone(arguments: Any) -> None:
    using = preparer(CALLS)
    rows = [using.attempt(row) for row in (history("{}"), history(arguments), history("{}"))]
    assert isinstance(rows[1], Failure)
    assert rows[1].error.code == "template_error"
    assert isinstance(rows[0], Prompt)
    assert rows[0] == rows[2]


def test_a_template_with_assistant_text_cut_is_no_fault() -> None:
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    assert text_of(chat(USER, turn("assistant", "x"), USER), preparer(template)) == "hellohello"


class ScribblingTokenizer:
    """A tokenizer whose renderer is a program that changes what it is given."""

    bos_token_id = None
    has_chat_template = True

    def encode(self, text: str) -> list[int]:
        return [1] * len(text)

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, **options: Any
    ) -> Any:
        text = str(conversation) + str(options["tools"])
        for message in conversation:
            for call in message.get("tool_calls", []):
                call["function"].clear()
            message.clear()
        options["tools"][0].clear()
        options["documents"].clear()
        return self.encode(text) if tokenize else text

    def __len__(self) -> int:
        return 256


def test_a_renderer_cannot_change_the_request() -> None:
    request = chat(
        *history('["kept"]').messages or [],
        tools=[copy.deepcopy(TOOL)],
        template_kwargs={"documents": [{"text": "x"}]},
    )
    before = copy.deepcopy(request)
    prepared = Preparer(ScribblingTokenizer(), model="m").attempt(request)
    assert isinstance(prepared, Prompt)
    assert request == before
