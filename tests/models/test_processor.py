from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.errors import ModelError
from batchrun.models.parts import Processed
from batchrun.models.processor import Clip, Picture
from tests import tiny, tinyvision
from tests.seeing import ask, clip, picture, process, processor, upstream_inputs, words

WITH_VIDEO = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
Vision = Callable[[str], Path]

sizes = st.tuples(st.integers(1, 150), st.integers(1, 150))
each_kind = pytest.mark.parametrize("kind", tinyvision.KINDS)


def placeholders(path: Path, token_ids: list[int]) -> int:
    config = tinyvision.read(path)
    names = ("image_token_id", "image_token_index", "video_token_id")
    return sum(token in [config.get(name) for name in names] for token in token_ids)


@each_kind
@given(wanted=st.lists(sizes, max_size=3))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tokens_and_arrays_are_those_of_mlx_vlm(
    kind: str, wanted: list[tuple[int, int]], tiny_vision: Vision
) -> None:
    path = tiny_vision(kind)
    how = processor(path)
    media: list[Picture | Clip] = [picture(*size) for size in wanted]
    text = ask(how, media)
    processed = process(how, text, media)
    expected = upstream_inputs(path, text, media)
    assert processed.token_ids == expected["input_ids"][0].tolist()
    assert [part.sources for part in processed.parts] == [(n,) for n in range(len(media))]
    if media and kind not in ("smolvlm", "idefics3"):  # which pad what they give for several
        arrays = np.concatenate([part.inputs["pixel_values"] for part in processed.parts])
        assert np.array_equal(arrays, np.array(expected["pixel_values"]))


@each_kind
@given(wanted=st.lists(sizes, min_size=2, max_size=3))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_picture_is_processed_the_same_among_others_as_alone(
    kind: str, wanted: list[tuple[int, int]], tiny_vision: Vision
) -> None:
    path = tiny_vision(kind)
    how = processor(path)
    media: list[Picture | Clip] = [picture(*size, seed) for seed, size in enumerate(wanted)]
    together = process(how, ask(how, media), media)
    covered = 0
    for part, medium in zip(together.parts, media, strict=True):
        (alone,) = process(how, ask(how, [medium]), [medium]).parts
        own = together.token_ids[part.start : part.end]
        assert placeholders(path, own[:1]) == placeholders(path, own[-1:]) == 1
        assert len(own) == alone.end - alone.start
        covered += placeholders(path, own)
        assert part.inputs.keys() == alone.inputs.keys()
        for name, array in part.inputs.items():
            assert np.array_equal(array, alone.inputs[name]), name
    assert covered == placeholders(path, together.token_ids)


@each_kind
def test_extreme_sizes_are_processed_or_refused_with_a_reason(
    kind: str, tiny_vision: Vision
) -> None:
    how = processor(tiny_vision(kind))
    for size in [(1, 1), (1, 2000), (2000, 1), (640, 480), (3, 3)]:
        medium = picture(*size)
        text = ask(how, [medium])
        if kind in WITH_VIDEO and 2000 in size:
            with pytest.raises(ValueError, match="aspect ratio must be smaller than 200"):
                process(how, text, [medium])
        else:
            assert len(process(how, text, [medium]).parts) == 1


@each_kind
def test_without_media_only_tokens(kind: str, tiny_vision: Vision) -> None:
    how = processor(tiny_vision(kind))
    assert process(how, ask(how, []), []).parts == []


@each_kind
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_text_with_another_number_of_places_is_refused(
    count: int, kind: str, tiny_vision: Vision
) -> None:
    how = processor(tiny_vision(kind))
    text = ask(how, [picture(30, 30)] * count)
    with pytest.raises(ValueError, match=r"stands for 2 image\(s\), but is in the prompt"):
        process(how, text, [picture(30, 30)] * 2)


@each_kind
def test_a_text_that_says_the_models_own_words_is_refused(kind: str, tiny_vision: Vision) -> None:
    how = processor(tiny_vision(kind))
    token = sorted(how._image_markers.tokens)[0]
    media: list[Picture | Clip] = [picture(30, 30)]
    with pytest.raises(ValueError, match="must not have such words"):
        process(how, ask(how, media, f"what is {token} for?"), media)


@each_kind
def test_only_numpy_comes_out(kind: str, tiny_vision: Vision) -> None:
    how = processor(tiny_vision(kind))
    media: list[Picture | Clip] = [picture(30, 40), picture(20, 50)]
    processed = process(how, ask(how, media), media)
    assert {type(token) for token in processed.token_ids} == {int}
    arrays = [array for part in processed.parts for array in part.inputs.values()]
    assert {type(array) for array in arrays} == {np.ndarray}


@each_kind
def test_works_in_another_thread(kind: str, tiny_vision: Vision) -> None:
    how = processor(tiny_vision(kind))
    media: list[Picture | Clip] = [picture(30, 40)]
    text = ask(how, media)
    found: list[Processed] = []
    thread = threading.Thread(target=lambda: found.append(process(how, text, media)))
    thread.start()
    thread.join()
    assert found[0].token_ids == process(how, text, media).token_ids


@each_kind
def test_strings_and_lists_of_text_render_alike(kind: str, tiny_vision: Vision) -> None:
    how = processor(tiny_vision(kind))
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi there"}]
    parts = [
        {**message, "content": [{"type": "text", "text": message["content"]}]} for message in plain
    ]
    assert how.render(plain) == how.render(parts)
    assert all(str(message["content"]) in how.render(plain) for message in plain)


def test_options_reach_the_template(tiny_vision: Vision) -> None:
    how = processor(tiny_vision("qwen2_vl"), chat_template="{{ style }}{{ messages[0].content }}")
    assert how.render([{"role": "user", "content": "hi"}], style="loud ") == "loud hi"


def test_a_given_template_without_images_refuses_them(tiny_vision: Vision) -> None:
    how = processor(tiny_vision("llava"), chat_template="{{ messages[0].content }}")
    media: list[Picture | Clip] = [picture(30, 30)]
    with pytest.raises(ValueError, match="no tokens for its images"):
        process(how, ask(how, media), media)


def test_a_template_that_knows_no_parts_gets_images_as_mlx_vlm_writes_them(
    tiny_vision: Vision, tmp_path: Path
) -> None:
    path = tmp_path / "gemma3"
    shutil.copytree(tiny_vision("gemma3"), path)
    shape = tinyvision.SHAPES["gemma3"]
    tiny.write_tokenizer(
        path,
        chat_template="{{ bos_token }}" + tiny.CHAT_TEMPLATE,
        special_tokens=(*tiny.SPECIAL_TOKENS, *shape["tokens"]),
        **shape["tokenizer"],
    )
    how = processor(path)
    media: list[Picture | Clip] = [picture(30, 30), picture(40, 30)]
    text = ask(how, media)
    assert "<start_of_image><start_of_image>What is this?" in text
    assert len(process(how, text, media).parts) == 2


@pytest.mark.parametrize("kind", WITH_VIDEO)
@pytest.mark.parametrize("frames", [1, 2, 3, 5])
def test_videos_of_any_length(frames: int, kind: str, tiny_vision: Vision) -> None:
    path = tiny_vision(kind)
    how = processor(path)
    assert how.takes_video
    media: list[Picture | Clip] = [clip(frames), clip(frames + 1, 90, 60)]
    text = ask(how, media)
    processed = process(how, text, media)
    expected = upstream_inputs(path, text, media)
    assert processed.token_ids == expected["input_ids"][0].tolist()
    assert [part.sources for part in processed.parts] == [(0,), (1,)]
    grids = [part.inputs["video_grid_thw"].tolist() for part in processed.parts]
    assert grids == [[grid] for grid in expected["video_grid_thw"].tolist()]
    assert [grid[0][0] for grid in grids] == [-(-frames // 2), -(-(frames + 1) // 2)]


@pytest.mark.parametrize("kind", WITH_VIDEO)
def test_images_and_videos_in_one_row(kind: str, tiny_vision: Vision) -> None:
    how = processor(tiny_vision(kind))
    media: list[Picture | Clip] = [clip(2), picture(60, 90), clip(4), picture(30, 30)]
    parts = process(how, ask(how, media), media).parts
    assert [part.sources for part in parts] == [(2,), (0,), (3,), (1,)]
    assert [set(part.inputs) for part in parts] == [
        {"pixel_values_videos", "video_grid_thw"},
        {"pixel_values", "image_grid_thw"},
    ] * 2


def test_seconds_of_a_video_follow_its_rate(tiny_vision: Vision) -> None:
    path = tiny_vision("qwen3_vl")
    how = processor(path)
    slow, fast = (
        process(how, ask(how, [medium]), [medium]).token_ids
        for medium in (clip(4, fps=0.5), clip(4, fps=2.0))
    )
    assert slow != fast


@pytest.mark.parametrize("kind", sorted(set(tinyvision.KINDS) - set(WITH_VIDEO)))
def test_models_for_images_only_say_so(kind: str, tiny_vision: Vision) -> None:
    how = processor(tiny_vision(kind))
    assert not how.takes_video
    with pytest.raises(ValueError, match="no place for a video"):
        how.process("hello", [], [clip(2)])


def test_identity_follows_the_settings(tiny_vision: Vision, tmp_path: Path) -> None:
    path = tiny_vision("qwen2_vl")
    same, other = (shutil.copytree(path, tmp_path / name) for name in ("same", "other"))
    settings = tinyvision.SHAPES["qwen2_vl"]["files"]["preprocessor_config.json"]
    tiny.write_json(other / "preprocessor_config.json", {**settings, "max_pixels": 200 * 200})
    assert processor(same).identity == processor(path).identity != processor(other).identity


def test_text_only_leaves_the_processor_out(tiny_vision: Vision) -> None:
    assert words(tiny_vision("qwen2_vl"), text_only=True).processor is None


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_processor_files_are_one_clear_line(
    text: str, tiny_vision: Vision, tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_vision("llava"), tmp_path / "copy")
    (path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ModelError, match="image processor cannot be read") as caught:
        words(path)
    assert "\n" not in str(caught.value)


def test_loading_says_nothing(tiny_vision: Vision) -> None:
    code = """
import sys
from batchrun.config import ModelConfig
from batchrun.models import load_tokenizer, locate
for path in sys.argv[1:]:
    config = ModelConfig(model=path)
    load_tokenizer(locate(config, print), config)
"""
    paths = [str(tiny_vision(kind)) for kind in tinyvision.KINDS]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("TRANSFORMERS_VERBOSITY", None)
    done = subprocess.run(
        [sys.executable, "-c", code, *paths],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert (done.stdout, done.stderr) == ("", "")


@each_kind
def test_of_several_pictures_each_holds_its_own_arrays_only(kind: str, tiny_vision: Vision) -> None:
    how = processor(tiny_vision(kind))
    media: list[Picture | Clip] = [picture(30, 40, seed=3), picture(120, 50, seed=3)]
    parts = process(how, ask(how, media), media).parts
    assert len(parts) == 2
    assert all(array.base is None for part in parts for array in part.inputs.values())
