from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.evaluation.metrics import METRICS, chosen


@pytest.mark.parametrize(
    ("metric", "text", "expected", "right"),
    [
        ("exact", " yes\n", "yes", True),
        ("exact", "Yes", "yes", False),
        ("contains", "It is PARIS.", "paris", True),
        ("contains", "It is Rome.", "paris", False),
        ("regex", "code 42!", r"\b\d{2}\b", True),
        ("regex", "code 421", r"\b\d{2}\b", False),
        ("regex", "anything", "(", None),
        ("numeric", "3 + 4 makes 7.", "7", True),
        ("numeric", "It costs $1,250.00 in all", "1250", True),
        ("numeric", "1,2,3", "3", True),
        ("numeric", "#### -1,2,3", "-1", True),
        ("numeric", "in all 1,234", "1234", True),
        ("numeric", "-12,345,678.5e1, then", "-123456785", True),
        ("numeric", "#### 1,200", "1200", True),
        ("numeric", "1234,567", "567", True),
        ("numeric", "1,23.5", "23.5", True),
        ("numeric", "1,2345", "2345", True),
        ("numeric", ",111" * 500_000 + ",11", "11", True),
        ("numeric", "1" * 1_000_000 + ",", "5", False),
        ("numeric", "about -3.5e2", "-350", True),
        ("numeric", "so it is .5", "0.5", True),
        ("numeric", "7\n#### 8\n\nQuestion: 9", "steps 1 2 3\n#### 8", True),
        ("numeric", "I cannot say", "8", False),
        ("numeric", "8", "no number", None),
        ("numeric", "1e999", "5", False),
        ("json", '{"b": [1, 2.0], "a": null}', '{"a":null,"b":[1.0,2]}', True),
        ("json", 'Here:\n```json\n{"a": 1}\n```\nDone.', '{"a": 1}', True),
        ("json", '{"a": true}', '{"a": 1}', False),
        ("json", '{"a": 1, "b": 2}', '{"a": 1}', False),
        ("json", "no json", '{"a": 1}', False),
        ("json", '{"a": 1}', "no json", None),
        ("json", "[" * 100_000, "[]", False),
        ("json", "[]", "[" * 100_000, None),
    ],
)
def test_an_answer_is_right_or_not(
    metric: str, text: str, expected: str, right: bool | None
) -> None:
    assert METRICS[metric](text, expected) is right


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Positive.", "positive"),
        ("not negative but positive", "negative"),
        ("very positive", "very positive"),
        ("unpositive", None),
        ("", None),
        ("C++!", "c++"),
    ],
)
def test_a_choice_is_the_class_that_is_named_first(text: str, named: str | None) -> None:
    assert chosen(text, ["positive", "negative", "very positive", "c++"]) == named


@given(st.text(), st.text(), st.sampled_from(sorted(METRICS)))
def test_no_text_makes_a_metric_fail(text: str, expected: str, metric: str) -> None:
    assert METRICS[metric](text, expected) in (True, False, None)


def test_a_class_without_a_name_is_named_by_no_answer() -> None:
    assert chosen("**good**", ["", "good"]) == "good"
