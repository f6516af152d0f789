"""The forecast as text and as a record: one screen, whatever the prompts hold."""

from __future__ import annotations

from dataclasses import replace

from batchrun.plan import Forecast, Group
from batchrun.report.forecast import forecast_record, render_forecast

FORECAST = Forecast(
    rows=4096,
    duplicates=12,
    prompt_tokens=2_000_000,
    duplicate_tokens=6000,
    shared_tokens=1_606_000,
    computed_tokens=388_000,
    num_groups=58,
    largest=(Group(4084, 405, 1_606_000, [0, 1, 2]),),
)


class Words:
    """A decoder whose tokens are `words`, the first of them a special one."""

    def __init__(self, *words: str):
        self._words = words

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return " ".join(self._words[i] for i in token_ids if i or not skip_special_tokens)


def test_the_figures_stand_below_one_another() -> None:
    assert render_forecast(FORECAST, Words("<s>", "You", "label")) == (
        "Plan of a run that finds nothing done by an earlier one\n"
        "rows                        4,096\n"
        "prompt tokens           2,000,000\n"
        "  computed                388,000    19.4 %\n"
        "  shared                1,606,000    80.3 %  prefixes: 58\n"
        "  repeated                  6,000     0.3 %  rows: 12\n"
        " tokens saved         rows       length  the prefix begins\n"
        "    1,606,000        4,084          405  You label"
    )


def test_no_rows_at_all() -> None:
    text = render_forecast(Forecast(0, 0, 0, 0, 0, 0, 0, ()), Words())

    assert text.splitlines()[3] == "  computed                      0     0.0 %"
    assert len(text.splitlines()) == 6


def test_it_fits_a_screen_whatever_is_in_it() -> None:
    largest = (Group(10**9, 10**6, 10**11, [0, 1, 2]),) * 5
    forecast = Forecast(10**9, 10**9, 10**13, 10**12, 10**12, 10**12, 10**8, largest)
    lines = render_forecast(forecast, Words("", "\x1b[31mred\n\n", "漢字" * 50)).split("\n")

    assert len(lines) == 12
    assert all(len(line) <= 80 and line.isprintable() for line in lines)


def test_the_record_holds_text_for_tokens() -> None:
    record = forecast_record(FORECAST, Words("<s>", "You", "label"))

    assert record["computed_tokens"] == 388_000
    assert record["largest"] == [
        {"num_prompts": 4084, "num_tokens": 405, "saved_tokens": 1_606_000, "opening": "You label"}
    ]


def test_media_in_a_prefix_are_named() -> None:
    group = Group(10, 6, 60, [0, 1, -7, -7, -9, 2])
    forecast = replace(FORECAST, largest=(group,))

    words = Words("<s>", "See", "well")
    assert render_forecast(forecast, words).endswith("  See[media]well")
    assert forecast_record(forecast, words)["largest"][0]["opening"] == "See[media]well"
