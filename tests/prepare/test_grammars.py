"""Shapes that can be followed, and those that cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from batchrun.errors import RowError, UsageError
from batchrun.prepare import Preparer
from batchrun.prepare.grammars import Grammars, check
from batchrun.records import Prompt, Request, Row, Sampling, Shape
from tests.prepare.conftest import preparer, tokenizer

EOS = 257
BAD = [
    Shape("json", json.dumps({"type": "integer", "minimum": 5, "maximum": 3}), "here"),
    Shape("json", json.dumps({"enum": []}), "here"),
    Shape("json", json.dumps({"type": "strin"}), "here"),
    Shape("json", json.dumps({"type": "array", "uniqueItems": True}), "here"),
    Shape("json", json.dumps({"$ref": "http://127.0.0.1:9/schema"}), "here"),
    Shape("json", json.dumps({"$ref": "#/nowhere"}), "here"),
    Shape("json", json.dumps({"type": "string", "pattern": "(?=a)"}), "here"),
    Shape("regex", "[0-9", "here"),
    Shape("lark", 'strt: "a"', "here"),
    Shape("lark", "start: a", "here"),
]


def prepared(shape: Shape | None, using: Preparer | None = None, **sampling: Any) -> Prompt:
    request = Request(Row(0, "in.jsonl", 1), Sampling(**sampling), prompt="hi", shape=shape)
    return (using or preparer(eos_token_ids={EOS})).prepare(request)


def accepts(shape: Shape, text: str) -> bool:
    grammar = prepared(shape).grammar
    assert grammar is not None
    matcher: LLMatcher = grammar.begin()
    return matcher.consume_tokens(tokenizer().encode(text)) and matcher.is_accepting()


@pytest.mark.parametrize("shape", BAD)
def test_a_shape_that_no_answer_can_have_is_the_rows_error(shape: Shape) -> None:
    with pytest.raises(RowError, match=r"^here cannot be followed: ") as caught:
        prepared(shape)
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", "here")
    assert "\n" not in caught.value.message
    with pytest.raises(UsageError, match=r"^here cannot be followed: "):
        check(shape)


def test_rows_with_the_same_shape_share_its_grammar() -> None:
    using = preparer()
    one, other = (Shape("regex", "[0-9]+", param) for param in ("a", "b"))
    first = prepared(one, using)
    assert prepared(other, using).grammar is first.grammar
    assert prepared(None, using).grammar is None


def test_the_shape_is_part_of_the_key() -> None:
    shapes = [
        None,
        Shape("regex", "a"),
        Shape("regex", "b"),
        Shape("lark", 'start: "a"'),
        Shape("json", '{"properties":{"a":{},"b":{}}}'),
        Shape("json", '{"properties":{"b":{},"a":{}}}'),
    ]
    assert len({prepared(shape).key for shape in shapes}) == len(shapes)
    assert prepared(Shape("regex", "a", "x")).key == prepared(Shape("regex", "a", "y")).key


@pytest.mark.parametrize("choice", ["positive", 'a "b"\n\\', "é €", "a,b", " a", "]"])
def test_choices_are_taken_literally(choice: str) -> None:
    shape = Shape("choice", json.dumps([choice, "other"]))
    assert accepts(shape, choice)
    assert accepts(shape, "other")
    assert not accepts(shape, choice + "x")


def test_json_is_written_in_one_way_unless_the_schema_says_otherwise() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}}
    assert accepts(Shape("json", json.dumps(schema)), '{"a": 1, "b": null}')
    assert not accepts(Shape("json", json.dumps(schema)), '{"a":1}')
    assert not accepts(Shape("json", json.dumps(schema)), '{"a":  1}')
    loose = schema | {"x-guidance": {"whitespace_flexible": True, "key_separator": ":"}}
    assert accepts(Shape("json", json.dumps(loose)), '{"a":  1}')


def test_every_end_of_the_model_ends_an_answer() -> None:
    grammar = prepared(Shape("regex", "a"), preparer(eos_token_ids={EOS, 256})).grammar
    assert grammar is not None
    for end in (EOS, 256):
        matcher = grammar.begin()
        assert not matcher.validate_tokens([end])
        assert matcher.consume_tokens([*tokenizer().encode("a")])
        assert matcher.is_stopped() or matcher.validate_tokens([end])


def test_a_model_with_more_ids_than_its_tokenizer_has_masks_of_that_size() -> None:
    grammar = prepared(Shape("regex", "a"), preparer(vocab_size=300)).grammar
    assert grammar is not None
    assert grammar.vocab_size == 300


def test_a_tokenizer_that_cannot_be_guided_is_the_rows_error() -> None:
    class Slow:
        bos_token_id = None
        has_chat_template = False

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [ord(letter) for letter in text]

        def __len__(self) -> int:
            return 128

    using = Preparer(Slow(), model="m")  # type: ignore[arg-type]
    with pytest.raises(RowError, match="cannot be guided") as caught:
        prepared(Shape("regex", "a", "guided_regex"), using)
    assert caught.value.param == "guided_regex"


class LosesSpaces:
    """As tokenizers that take some characters for nothing."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.strip().encode())


def test_a_choice_that_has_no_tokens_is_the_rows_error() -> None:
    choices = Grammars(LosesSpaces(), {EOS}, None).choices
    with pytest.raises(RowError, match=r"^here has '  ', of which the tokenizer leaves nothing"):
        choices(Shape("choice", json.dumps(["yes", "  "]), "here"))
