"""A vision model's processor: messages and pictures -> token ids, and arrays for the vision tower.

mlx-vlm's own, with what batch work needs on top: which tokens stand for which picture, and its
arrays apart from the others'. Gives numpy arrays only, so that it may run in any thread; knows
nothing of rows, files or limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from batchrun.models.parts import Arrays, Processed, split
from batchrun.models.replay import Replay, single_bos

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PreTrainedTokenizerBase
    from transformers.processing_utils import ProcessorMixin

    from batchrun.models.forms import MessageForms

# Not for the vision tower: the tokens themselves, and a mask that hides none of them.
_TOKEN_ARRAYS = ("input_ids", "attention_mask")


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A decoded image: RGB, with a digest (32 bytes) over its pixels and size; and for people a
    small JPEG of it, if there is one."""

    image: Image.Image
    digest: bytes
    thumbnail: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """A decoded video: `frames` (frames, height, width, 3) uint8, `fps` of them a second, with a
    digest (32 bytes) over all that."""

    frames: npt.NDArray[np.uint8]
    fps: float
    digest: bytes


class Processor:
    """`identity` names all settings that decide how a picture is processed."""

    def __init__(
        self,
        upstream: ProcessorMixin,
        forms: MessageForms,
        *,
        identity: str,
        image_ids: frozenset[int],
        video_ids: frozenset[int],
        adds_special_tokens: bool,
    ):
        self.identity = identity
        self._upstream = upstream
        self._forms = forms
        self._image_ids = image_ids
        self._video_ids = video_ids
        self._adds_special_tokens = adds_special_tokens
        # Settles the tokenizer's padding, which must not change any more once threads share it.
        self._run("a", [], [])
        self._image_markers = forms.images
        self._video_markers = forms.videos
        self._replay = Replay(
            tokenizer_of(upstream),
            forms.images.tokens - forms.videos.tokens or forms.images.tokens,
            adds_special_tokens=adds_special_tokens,
        )
        self.takes_video = self._can_take_video()

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The conversation as text, by the model's own chat template. Parts of a message's content
        are {"type": "text", "text": ...}, {"type": "image"} and {"type": "video"}. `options` reach
        the template. Raises whatever the template does."""
        return self._forms.render(messages, options)

    def process(self, text: str, pictures: list[Picture], clips: list[Clip]) -> Processed:
        """Token ids of a rendered conversation, with what stands for its media.

        Raises whatever the model's processor does, and ValueError where the text has not exactly
        one place for each of the media.
        """
        if pictures or clips:
            self._image_markers.check(text, len(pictures), also=self._video_markers)
            self._video_markers.check(text, len(clips), also=self._image_markers)
        if clips or not pictures:
            return self._processed(text, pictures, clips)
        digests = [picture.digest for picture in pictures]
        placed = self._replay.place(text, digests)
        if placed is not None and self._replay.is_trusted(len(pictures)):
            return placed
        processed = self._processed(text, pictures, clips)
        self._replay.learn(text, digests, processed, placed)
        return processed

    def _processed(self, text: str, pictures: list[Picture], clips: list[Clip]) -> Processed:
        arrays = self._run(text, pictures, clips)
        token_ids = self._token_ids(arrays)
        parts = split(
            token_ids,
            arrays,
            (self._image_ids, len(pictures)),
            (self._video_ids, len(clips)),
            lambda source: self._alone(source, pictures, clips),
        )
        return Processed(token_ids, parts)

    def _alone(self, source: int, pictures: list[Picture], clips: list[Clip]) -> tuple[int, Arrays]:
        """How many tokens stand for one of the media, and its arrays, if it is the only one."""
        if source < len(pictures):
            text, ids = self._image_markers.text, self._image_ids
            processed = self._processed(text, [pictures[source]], [])
        else:
            text, ids = self._video_markers.text, self._video_ids
            processed = self._processed(text, [], [clips[source - len(pictures)]])
        return sum(map(ids.__contains__, processed.token_ids)), processed.parts[0].inputs

    def _run(self, text: str, pictures: list[Picture], clips: list[Clip]) -> Arrays:
        """What mlx-vlm prepares for its own generation from one prompt."""
        from mlx_vlm.utils import prepare_inputs

        given: dict[str, Any] = {}
        if pictures:
            given["images"] = [picture.image for picture in pictures]
        if clips:
            given["videos"] = [clip.frames.transpose(0, 3, 1, 2) for clip in clips]
            given["video_metadata"] = [_metadata(clip) for clip in clips]
        prepared = prepare_inputs(
            self._upstream,
            prompts=text,
            add_special_tokens=self._adds_special_tokens,
            image_token_index=next(iter(self._image_ids), None),
            **given,
        )
        return {name: _array(name, value) for name, value in prepared.items() if value is not None}

    def _token_ids(self, arrays: Arrays) -> list[int]:
        """Takes the tokens out of `arrays`."""
        found: list[int] = arrays.pop("input_ids")[0].tolist()
        for name in _TOKEN_ARRAYS:
            arrays.pop(name, None)
        token_ids = single_bos(found, tokenizer_of(self._upstream).bos_token_id)
        for name, array in arrays.items():
            if array.shape == (1, len(found)):
                arrays[name] = array[:, len(found) - len(token_ids) :]
        return token_ids

    def takes_images(self) -> bool:
        """Whether an image can be processed: tried out."""
        image = Image.new("RGB", (64, 64))
        return self._can_process(self._image_markers.text, [Picture(image, b"")], [])

    def _can_take_video(self) -> bool:
        """Whether the template has a place for a video, and the processor fills it: tried out, as
        both may be written for images only."""
        clip = Clip(np.zeros((2, 64, 64, 3), np.uint8), 1.0, b"")
        return bool(self._video_ids) and self._can_process(self._video_markers.text, [], [clip])

    def _can_process(self, text: str, pictures: list[Picture], clips: list[Clip]) -> bool:
        try:
            return len(self.process(text, pictures, clips).parts) == 1
        # Processors raise anything on what they are not made for.
        except Exception:  # noqa: BLE001
            return False


def tokenizer_of(upstream: ProcessorMixin) -> PreTrainedTokenizerBase:
    """For some models mlx-vlm's processor is a tokenizer with an image processor to it."""
    from transformers import PreTrainedTokenizerBase

    if isinstance(upstream, PreTrainedTokenizerBase):
        return upstream
    return upstream.tokenizer


def _metadata(clip: Clip) -> dict[str, Any]:
    count = len(clip.frames)
    return {"total_num_frames": count, "fps": clip.fps, "frames_indices": list(range(count))}


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    """Lists hold an array for each image: one of them is one more dimension."""
    if isinstance(value, list):
        try:
            return np.stack([np.asarray(item) for item in value])
        except ValueError as error:
            raise ValueError(
                f"the model's processor gives {name} in several shapes ({error});"
                " give such images a row each"
            ) from error
    array = np.asarray(value)
    # Rows wait with their arrays: masks and grids need no 64 bits.
    return array.astype(np.int32) if array.dtype == np.int64 else array
