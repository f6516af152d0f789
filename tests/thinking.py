"""A tiny model's folder whose tokenizer knows reasoning and tool calls."""

from __future__ import annotations

import json
from pathlib import Path

from tests import tiny

# In this order after the 320 of the plain tokenizer.
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
THINK, END_THINK, CALL, END_CALL = range(tiny.VOCAB_SIZE, tiny.VOCAB_SIZE + 4)
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    + tiny.CHAT_TEMPLATE
    + "{% if enable_thinking == false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    + "{% if begun %}{{ '<think>\n' }}{% endif %}"
    # What mlx-lm knows the format by.
    + "{% if false %}<tool_call>{{ tool_call.name }}</tool_call>{% endif %}"
)


def build(path: Path) -> Path:
    tiny.build("llama", path, vocab_size=tiny.VOCAB_SIZE + len(MARKS))
    tiny.write_tokenizer(path, chat_template=TEMPLATE)
    file = path / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    for number, mark in enumerate(MARKS, start=tiny.VOCAB_SIZE):
        added = {"id": number, "content": mark, "special": False, "normalized": False}
        added |= {"single_word": False, "lstrip": False, "rstrip": False}
        tokenizer["added_tokens"].append(added)
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    return path
