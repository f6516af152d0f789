from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.sink.encode import clean, dumps, dumps_kept, microseconds, parse_stop, stop_text

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_lone_surrogates_never_reach_a_file_raw(text: str) -> None:
    clean(text).encode("utf-8")
    assert len(clean(text)) == len(text)
    encoded = dumps({text: [text]})
    encoded.encode("utf-8")
    assert json.loads(encoded) == {text: [text]}


def test_text_without_lone_surrogates_is_left_alone() -> None:
    assert clean("שלום 👩‍👩‍👧 \u2028") == "שלום 👩‍👩‍👧 \u2028"
    assert dumps("שלום") == '"שלום"'


def test_json_is_strict_where_numbers_are_not_finite() -> None:
    value = {"a": [float("nan"), {"b": float("-inf")}], "c": 1.5}
    assert dumps(value) == '{"a":[null,{"b":null}],"c":1.5}'


def test_values_that_json_lacks_have_a_form() -> None:
    kept = {
        "bytes": b"\x00\xff",
        "day": date(2024, 2, 29),
        "moment": datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
        "time": time(1, 2, 3),
        "exact": Decimal("1.10"),
        "span": timedelta(seconds=1.5),
        "other": 1 + 2j,
    }
    assert json.loads(dumps_kept(kept)) == {
        "bytes": "AP8=",
        "day": "2024-02-29",
        "moment": "2024-02-29T01:02:03.000004+00:00",
        "time": "01:02:03",
        "exact": "1.10",
        "span": 1.5,
        "other": "(1+2j)",
    }


STOPS = st.one_of(
    st.none(),
    st.integers(0, 2**40),
    st.text(),
    st.from_regex(r'"*[0-9]{0,3}"*', fullmatch=True),
    st.text('"\\1').map(dumps),
)


@given(STOPS)
def test_stop_reason_as_text_is_read_back_with_its_type(reason: str | int | None) -> None:
    again = parse_stop(stop_text(reason))
    assert again == reason
    assert type(again) is type(reason)


@pytest.mark.parametrize(
    ("reason", "text"), [(13, "13"), ("###", "###"), ("13", '"13"'), ('"', '"'), ("007", "007")]
)
def test_stop_reason_stays_as_it_is_unless_it_would_be_mistaken(
    reason: str | int, text: str
) -> None:
    assert stop_text(reason) == text


@given(st.integers(0, 2**52))
def test_microseconds_survive_seconds_as_a_float(moment: int) -> None:
    assert microseconds(moment / 1e6) == moment
