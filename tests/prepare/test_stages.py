"""Rows to prompts ahead: in order, each failing alone, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from PIL import Image

from batchrun.errors import RowError, RunError
from batchrun.prepare import Preparer, prepared_ahead
from batchrun.prepare.ahead import Ahead
from batchrun.records import Failure, Prompt, Request, Row
from tests.prepare.conftest import chat, tokenizer, turn
from tests.prepare.fakes import FakeProcessor
from tests.prepare.media.builders import encoded


def rows(count: int) -> Iterator[Request | Failure]:
    """By turns: an image, a text, a missing file, and a row that failed before."""
    for index in range(count):
        row = Row(index, "in.jsonl", index + 1)
        image = encoded(Image.new("RGB", (10 + index % 7, 10), "red"))
        parts = {
            0: [{"type": "image", "image": image}],
            1: [{"type": "text", "text": "hi"}],
            2: [{"type": "image", "image": "none.png"}],
        }
        if index % 4 == 3:
            yield Failure(row, RowError("invalid_json_line", "is no JSON"))
        else:
            yield replace(chat(turn("user", parts[index % 4])), row=row)


def finished(preparer: Preparer, source: Iterator[Request | Failure], depth: int) -> list[str]:
    with prepared_ahead(source, preparer, preparer.finish, depth=depth) as ahead:
        found = [item for item in ahead if item is not None]
    assert [item.row.index for item in found] == list(range(len(found)))
    return [item.error.code if isinstance(item, Failure) else _kind(item) for item in found]


def _kind(prompt: Prompt) -> str:
    return "image" if prompt.media else "text"


@pytest.mark.parametrize("depth", [1, 5, 1000])
def test_every_row_comes_once_in_order(depth: int) -> None:
    sight = Preparer(tokenizer(), model="tiny", processor=FakeProcessor())
    kinds = ["image", "text", "media_not_found", "invalid_json_line"]
    assert finished(sight, rows(120), depth) == kinds * 30


def test_without_a_processor_images_fail_and_text_does_not() -> None:
    kinds = ["unsupported_content", "text", "unsupported_content", "invalid_json_line"]
    assert finished(Preparer(tokenizer(), model="tiny"), rows(8), 4) == kinds * 2


def test_a_source_that_breaks_is_told_after_the_rows_before() -> None:
    def breaking() -> Iterator[Request | Failure]:
        yield from rows(6)
        raise RunError("cut off")

    sight = Preparer(tokenizer(), model="tiny", processor=FakeProcessor())
    found = []
    with (
        pytest.raises(RunError, match="cut off"),
        prepared_ahead(breaking(), sight, sight.finish, depth=9) as ahead,
    ):
        found += [item for item in ahead if item is not None]
    with prepared_ahead(rows(6), sight, sight.finish, depth=9):
        pass


def held(count: int, max_bytes: int, *, shared: bool) -> int:
    """How many of `count` items of 10 bytes are computed before the first is taken."""
    objects = [object()] * count if shared else [object() for _ in range(count)]
    done: list[object] = []

    def step(item: object) -> object:
        done.append(item)
        return item

    with Ahead(
        objects, step, depth=50, weigh=lambda item: {id(item): 10}, max_bytes=max_bytes
    ) as ahead:
        taken = 0
        most = 0
        for item in ahead:
            if item is None:
                most = max(most, len(done) - taken)
            else:
                taken += 1
                most = max(most, len(done) - taken)
    assert len(done) == taken == count
    return most


def test_reading_ahead_stops_at_the_bytes_of_what_waits() -> None:
    assert held(40, 30, shared=False) <= 4


def test_what_items_share_counts_once() -> None:
    from threading import Event

    one, full = object(), Event()
    items = [one] * 20
    done: list[object] = []

    def step(item: object) -> object:
        done.append(item)
        if len(done) == 20:
            full.set()
        return item

    with Ahead(items, step, depth=50, weigh=lambda item: {id(item): 10}, max_bytes=11):
        assert full.wait(30)
