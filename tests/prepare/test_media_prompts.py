"""Rows with images and videos -> prompts, for a model with a processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from batchrun.errors import RowError
from batchrun.models.parts import Processed
from batchrun.models.processor import Clip, Picture
from batchrun.prepare import Preparer
from batchrun.prepare.spans import MediaTokens
from batchrun.prepare.tokenizer import BosRule
from batchrun.records import Failure, Prompt, Request
from tests.prepare.conftest import CHATML, chat, completion, text_of, tokenizer, turn
from tests.prepare.fakes import LISTS, FakeProcessor
from tests.prepare.media.builders import data_url, encoded, video

RED = encoded(Image.new("RGB", (30, 20), "red"))
BLUE = encoded(Image.new("RGB", (30, 20), "blue"))
HIGH = encoded(Image.new("RGB", (20, 30), "red"))
ASK = {"type": "text", "text": "what?"}


def part(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def ask(*parts: dict[str, Any], **options: Any) -> Request:
    return chat(turn("user", [*parts, ASK]), **options)


class Sight(Preparer):
    """A preparer that takes images, and the processor it has."""

    def __init__(self, plain: str | None = CHATML, adds_bos: bool = False, **options: Any):
        self.processor = FakeProcessor(**options)
        words = tokenizer(plain, adds_bos=adds_bos)
        super().__init__(words, model="tiny", processor=self.processor)


@pytest.fixture
def sight() -> Iterator[Sight]:
    preparer = Sight()
    yield preparer
    preparer.close()


def prompt(preparer: Preparer, request: Request) -> Prompt:
    return preparer.prepare(request)


def error_of(preparer: Preparer, request: Request) -> RowError:
    with pytest.raises(RowError) as caught:
        preparer.prepare(request)
    return caught.value


def test_an_image_has_its_tokens_in_its_place(sight: Sight) -> None:
    made = prompt(sight, ask(part(RED)))
    (span,) = made.media
    assert made.token_ids[span.start : span.end] == span.media.token_ids == [7] * 6
    around = made.token_ids[: span.start] + made.token_ids[span.end :]
    assert tokenizer().decode(around) == "<|user|>what?</s><|assistant|>"
    assert span.media.inputs["pixel_values"].shape == (20, 30, 3)


def test_images_keep_their_order_and_each_its_own_pixels(sight: Sight) -> None:
    made = prompt(sight, ask(part(RED), ASK, part(BLUE), part(RED)))
    colours = [span.media.inputs["pixel_values"][0, 0].tolist() for span in made.media]
    assert colours == [[255, 0, 0], [0, 0, 255], [255, 0, 0]]
    assert made.media[0].media is made.media[2].media


def test_images_and_videos_are_told_apart_wherever_they_stand(sight: Sight, tmp_path: Path) -> None:
    clip = {"type": "video", "video": video(tmp_path / "a.avi", 5).read_bytes()}
    made = prompt(sight, ask(part(RED), clip, part(BLUE)))
    shapes = [span.media.inputs["pixel_values"].shape for span in made.media]
    assert shapes == [(20, 30, 3), (4, 48, 64, 3), (20, 30, 3)]


def test_equal_images_of_prompts_share_one_object_and_others_do_not(sight: Sight) -> None:
    prompts = [prompt(sight, ask(part(data))) for data in (RED, BLUE, RED, HIGH)]
    media = [one.media[0].media for one in prompts]
    assert media[0] is media[2]
    assert len({one.digest for one in media}) == 3


def test_only_what_decides_the_answer_is_in_the_key(sight: Sight) -> None:
    keys = [prompt(sight, ask(part(data))).key for data in (RED, BLUE, HIGH, RED)]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3
    assert prompt(sight, ask(part(RED), part(BLUE))).key != (
        prompt(sight, ask(part(BLUE), part(RED))).key
    )
    other = Sight(identity="of another size")
    assert prompt(other, ask(part(RED))).key != keys[0]


def test_begins_alike_only_with_the_same_image(sight: Sight) -> None:
    red, blue, again = (prompt(sight, ask(part(data))).content_ids for data in (RED, BLUE, RED))
    assert red == again
    assert red != blue


class Padding(FakeProcessor):
    """Makes all images of a row as high as its highest."""

    def process(self, text: str, pictures: list[Picture], clips: list[Clip]) -> Processed:
        made = super().process(text, pictures, clips)
        highest = max(picture.image.height for picture in pictures)
        for part in made.parts:
            pixels = part.inputs["pixel_values"]
            missing = highest - pixels.shape[0]
            part.inputs["pixel_values"] = np.pad(pixels, [(0, missing), (0, 0), (0, 0)])
        return made


def test_an_image_that_its_neighbours_change_is_another(sight: Sight) -> None:
    sight._media_tokens = MediaTokens(Padding(), BosRule(tokenizer()))
    alone, among = (prompt(sight, ask(*parts)) for parts in ([part(RED)], [part(RED), part(HIGH)]))
    one, other = alone.media[0].media, among.media[0].media
    assert one.digest != other.digest
    assert (one.inputs["pixel_values"].shape[0], other.inputs["pixel_values"].shape[0]) == (20, 30)


def test_the_prompts_request_holds_no_pixels_any_more(sight: Sight) -> None:
    request = ask(part(RED))
    made = prompt(sight, request)
    assert made.request.messages == [turn("user", [{"type": "image"}, ASK])]
    assert request.messages == [turn("user", [part(RED), ASK])]


def test_a_text_row_is_the_same_as_on_a_text_model(sight: Sight) -> None:
    for request in (chat(turn("user", "hello")), ask(), completion("hello")):
        made, plain = prompt(sight, request), Preparer(tokenizer(), model="tiny").prepare(request)
        assert (made.token_ids, made.key, made.media) == (plain.token_ids, plain.key, ())
    assert sight.processor.num_processed == 0


def test_a_template_that_takes_lists_only_is_reached_through_the_processor() -> None:
    only_lists = LISTS.replace("message.content is string", "false")
    sight = Sight("{{ raise_exception('lists, please') }}", template=LISTS)
    assert text_of(chat(turn("user", "hello")), sight) == "<|user|>hello</s><|assistant|>"
    assert prompt(Sight(template=only_lists), ask(part(RED))).media


def test_a_row_that_no_template_takes_has_the_first_ones_reason() -> None:
    sight = Sight("{{ raise_exception('no') }}", template="{{ raise_exception('never') }}")
    assert str(error_of(sight, chat(turn("user", "hello")))).endswith("refuses the row: no")


def test_text_that_the_template_leaves_out_beside_an_image_is_a_fault() -> None:
    sight = Sight(template=LISTS.replace("or part.text", "or ''"))
    error = error_of(sight, ask(part(RED)))
    assert (error.code, error.param) == ("template_ignores_message", "messages[0]")


def test_one_bos_is_first_and_spans_move_with_it() -> None:
    made = prompt(Sight(adds_bos=True), ask(part(RED)))
    (span,) = made.media
    assert made.token_ids[0] == tokenizer().bos_token_id
    assert made.token_ids[span.start : span.end] == [7] * 6
    assert made.token_ids.count(7) == 6


@pytest.mark.parametrize("place", [0, 1])
def test_of_two_images_one_that_is_missing_fails_the_row(sight: Sight, place: int) -> None:
    parts = [part(RED), {"type": "image", "image": "none.png"}]
    request = ask(*(parts if place else parts[::-1]))
    error = error_of(sight, request)
    assert (error.code, error.param) == ("media_not_found", f"messages[0].content[{place}]")
    failure = sight.attempt(request)
    assert isinstance(failure, Failure)
    assert (failure.row, failure.error.code) == (request.row, "media_not_found")


def test_a_video_on_a_model_for_images_is_a_fault() -> None:
    sight = Sight(takes_video=False)
    error = error_of(sight, ask({"type": "video_url", "video_url": {"url": "a.mp4"}}))
    assert (error.code, error.param) == ("unsupported_content", "messages[0].content[0]")


def test_an_image_on_a_text_model_is_a_fault_and_is_not_fetched() -> None:
    error = error_of(Preparer(tokenizer(), model="tiny"), ask(part(RED)))
    assert (error.code, error.param) == ("unsupported_content", "messages[0].content[0]")


def test_a_processor_that_leaves_an_image_out_fails_the_row() -> None:
    error = error_of(Sight(forgets=True), ask(part(RED), part(BLUE)))
    assert error.code == "media_error"
    assert "shows 1 of the row's 2" in str(error)


def test_a_prompt_that_ends_with_an_image_is_a_fault() -> None:
    ends = LISTS.replace("</s>", "")
    request = chat(turn("user", [ASK, part(RED)]), template_kwargs={"add_generation_prompt": False})
    error = error_of(Sight(plain=ends, template=ends), request)
    assert error.code == "media_error"
    assert "ends with an image" in error.message


def test_what_the_processor_refuses_is_the_rows_error() -> None:
    error = error_of(Sight(fails="too thin"), ask(part(RED)))
    assert (error.code, error.param) == ("media_error", "messages")
    assert str(error).endswith("too thin")


def test_a_failure_lets_go_of_the_pictures_that_it_was_raised_over() -> None:
    failure = Sight(fails="too thin").attempt(ask(part(RED)))
    assert isinstance(failure, Failure)
    error = failure.error
    assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


def test_tokens_of_images_count_against_the_context_length() -> None:
    sight = Preparer(tokenizer(), model="tiny", processor=FakeProcessor(), context_length=40)
    assert prompt(sight, ask(part(RED))).sampling.max_tokens > 0
    large = encoded(Image.new("RGB", (200, 200), "red"))
    assert error_of(sight, ask(part(large))).code == "context_length_exceeded"
