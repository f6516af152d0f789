"""What the model is shown and what becomes of its tokens: templates, ends, stops and characters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchrun
from batchrun.sink.encode import stop_text
from tests import tiny
from tests.running import alone, read_parquet, texts, write_jsonl

THINKING = (
    tiny.CHAT_TEMPLATE
    + "{% if enable_thinking is defined and not enable_thinking %}{{ 'no thoughts' }}{% endif %}"
    + "{% if enable_thinking %}{{ 'think' }}{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + tiny.CHAT_TEMPLATE
)
WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}"
    "{% for name, value in call['function']['arguments'].items() %}"
    "{{ name + '=' + value }}{% endfor %}{% endfor %}{% endfor %}"
)


def turn(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def with_template(source: Path, folder: Path, template: str | None, **extra: Any) -> Path:
    """A copy of a tiny model with another chat template."""
    shutil.copytree(source, folder)
    tiny.write_tokenizer(folder, chat_template=template, **extra)
    return folder


def run(rows: list[Any], folder: Path, model: Path, **flags: Any) -> list[dict[str, Any]]:
    """The output of a run, as Parquet has it."""
    batchrun.run(
        write_jsonl(folder / "in.jsonl", rows),
        output=folder / "out.parquet",
        model=str(model),
        quiet=True,
        **({"max_tokens": 8} | flags),
    )
    return read_parquet(folder / "out.parquet")


# ---------------------------------------------------------------- templates


def test_template_kwargs_are_each_rows_own_in_one_batch(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    model = with_template(tiny_model("llama"), tmp_path / "thinker", THINKING)
    chat = [turn("Is it so?")]
    kwargs: list[dict[str, Any]] = [{"enable_thinking": False}, {"enable_thinking": True}]
    rows = [{"messages": chat, "chat_template_kwargs": k} for k in kwargs] * 2
    written = run(rows, tmp_path, model)

    expected = [alone(model).chat(chat, 8, **k) for k in kwargs]
    assert [row["text"] for row in written] == expected * 2
    assert len({row["request_key"] for row in written}) == 2


def test_a_template_that_refuses_a_row_fails_it_alone(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    model = with_template(tiny_model("llama"), tmp_path / "strict", NO_SYSTEM)
    chats = [[turn("hi")], [turn("Be short.", "system"), turn("hi")], [turn("hi"), turn("ho")]]
    first, refused, doubled = run([{"messages": chat} for chat in chats], tmp_path, model)
    assert refused["error_code"] == "template_error"
    assert "no system role" in refused["error_message"]
    assert first["text"] == alone(model).chat(chats[0], 8)
    assert doubled["text"] == alone(model).chat(chats[2], 8)


def test_a_model_without_a_template_answers_prompts_and_fails_chats(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    model = with_template(tiny_model("llama"), tmp_path / "base", None)
    rows = [{"messages": [turn("hi")]}, {"prompt": "hi"}]
    chat, prompt = run(rows, tmp_path, model)
    assert chat["error_code"] == "no_chat_template"
    assert "--chat-template" in chat["error_message"]
    assert prompt["text"] == alone(model).complete("hi", 8)

    (tmp_path / "chatml.jinja").write_text(tiny.CHAT_TEMPLATE)
    chat, prompt = run(rows, tmp_path, model, chat_template=str(tmp_path / "chatml.jinja"))
    assert chat["text"] == alone(tiny_model("llama")).chat([turn("hi")], 8)


def test_tool_history_of_any_shape_is_a_row_or_its_fault(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    model = with_template(tiny_model("llama"), tmp_path / "tools", WITH_TOOLS)

    def history(arguments: Any) -> dict[str, Any]:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        told = turn("sunny", "tool", tool_call_id="1")
        return {"messages": [turn("hi"), turn(None, "assistant", tool_calls=[call]), told]}

    rows = [history('{"city": "Paris"}'), history({"city": "Paris"}), history("junk"), history([1])]
    text, parsed, junk, listed = run(rows, tmp_path, model)
    assert text["text"] == parsed["text"]
    assert text["prompt_tokens"] == parsed["prompt_tokens"]
    for row in (junk, listed):
        assert row["error_code"] in ("template_error", "invalid_request")


def test_parts_of_text_are_the_joined_text_and_an_image_is_a_fault(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    rows = [{"messages": [turn(content)]} for content in (parts, "one two", [*parts, image])]
    split, whole, picture = run(rows, tmp_path, tiny_model("llama"))
    assert split["text"] == whole["text"]
    assert split["request_key"] == whole["request_key"]
    assert (picture["text"], picture["error_code"]) == (None, "unsupported_content")


def test_tool_schemas_that_differ_give_the_same_prompts_from_parquet(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    model = with_template(tiny_model("llama"), tmp_path / "tools", WITH_TOOLS)

    def tool(name: str, **properties: Any) -> dict[str, Any]:
        parameters = {"type": "object", "properties": properties}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    rows = [
        {"messages": [turn("hi")], "tools": [tool("one", city={"type": "string"})]},
        {"messages": [turn("hi")], "tools": [tool("two", days={"type": "integer", "minimum": 1})]},
    ]
    expected = [row["request_key"] for row in run(rows, tmp_path, model)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    batchrun.run(
        tmp_path / "in.parquet",
        output=tmp_path / "again.parquet",
        model=str(model),
        quiet=True,
        max_tokens=8,
    )
    assert [row["request_key"] for row in read_parquet(tmp_path / "again.parquet")] == expected
    assert len(set(expected)) == 2


# ---------------------------------------------------------------- ends


def test_every_end_token_that_any_file_declares_ends_the_answer(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    """Three files, three ends; nothing follows from the name, which is another family's."""
    model = tmp_path / "Qwen3-gemma-instruct"
    shutil.copytree(tiny_model("llama", eos_token_id=100), model)
    tiny.write_json(model / "generation_config.json", {"eos_token_id": [101, 102]})
    ends = {tiny.IM_END: "tokenizer", 100: "config", 101: "generation", 102: "generation"}
    rows = [{"prompt": "hi", "logit_bias": {str(token): 100}} for token in [*ends, 99]]
    *ended, went_on = run(rows, tmp_path, model, max_tokens=3)
    for row in ended:
        assert (row["finish_reason"], row["stop_reason"], row["text"]) == ("stop", None, "")
        assert row["completion_tokens"] == 1
    assert (went_on["finish_reason"], went_on["completion_tokens"]) == ("length", 3)


def test_ids_past_the_tokenizers_vocabulary_do_no_harm(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    model = tiny_model("llama", vocab_size=512)
    chosen = alone(model).ids(list(alone(model).tokenizer.encode("hi")), 12)
    assert max(chosen) >= tiny.VOCAB_SIZE
    (row,) = run([{"prompt": "hi", "ignore_eos": True, "logprobs": 3}], tmp_path, model)
    assert row["text"] == alone(model).tokenizer.decode(chosen[:8], skip_special_tokens=True)
    assert len(json.loads(row["logprobs"])) == 8


# ---------------------------------------------------------------- stops


def test_stops_end_before_themselves_wherever_tokens_meet(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    """Stops cut out of what the model says, of every length and place, each in one row."""
    model = tiny_model("llama")
    said = alone(model).complete("Once", 48)
    stops = [said[start : start + size] for start in range(0, 40, 3) for size in (1, 2, 5)]
    rows = [{"prompt": "Once", "stop": ["never said", stop]} for stop in stops if stop.strip()]
    plain = [{"prompt": "Once", "stop": "never said"}, {"prompt": "Once"}]
    written = run(rows + plain, tmp_path, model, max_tokens=48)

    for row, asked in zip(written, rows, strict=False):
        stop = asked["stop"][1]
        assert row["text"] == said[: said.index(stop)]
        assert (row["finish_reason"], row["stop_reason"]) == ("stop", stop_text(stop))
    assert [row["text"] for row in written[-2:]] == [said, said]


def test_a_beginning_of_a_stop_at_the_end_of_the_text_is_kept(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    model = tiny_model("llama")
    said = alone(model).complete("Once", 8)
    rows = [{"prompt": "Once", "stop": [said[-3:] + "#"], "ignore_eos": True}]
    (row,) = run(rows, tmp_path, model, max_tokens=8)
    assert (row["text"], row["finish_reason"]) == (said, "length")


# ---------------------------------------------------------------- characters


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_answers_cut_in_mid_character_are_what_the_tokenizer_makes_of_them(
    tmp_path: Path, tiny_model: Callable[..., Path], kind: str
) -> None:
    """Most tokens are single bytes here, and a random model does not care for characters."""
    model = tiny_model("llama")
    prompt = "\U0001f469\u200d\U0001f467 \u05e9\u05dc\u05d5\u05dd \u65e5\u672c\u8a9e"
    chosen = alone(model).ids(list(alone(model).tokenizer.encode(prompt)), 24)
    rows = [{"prompt": prompt, "max_tokens": n, "ignore_eos": True} for n in range(1, 25)]
    output = tmp_path / f"out.{kind}"
    batchrun.run(
        write_jsonl(tmp_path / "in.jsonl", rows), output=output, model=str(model), quiet=True
    )
    decoded = [
        alone(model).tokenizer.decode(chosen[:n], skip_special_tokens=True) for n in range(1, 25)
    ]
    assert texts(output) == decoded
    assert any(text.endswith("\ufffd") for text in decoded)
