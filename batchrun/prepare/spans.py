"""A rendered conversation and its media -> token ids, and where in them the media stand."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256

from batchrun.errors import RowError
from batchrun.models.parts import Part, Processed
from batchrun.models.processor import Clip, Picture
from batchrun.prepare.media import Decoded
from batchrun.prepare.processor import Processor
from batchrun.prepare.tokenizer import BosRule, row_error
from batchrun.records import Media, MediaSpan

# What is remembered of processed media, for rows to come with the same.
_KEPT_BYTES = 2**26


class MediaTokens:
    """Runs the processor for one row at a time; rows with the same image share its arrays."""

    def __init__(
        self, processor: Processor, bos: BosRule, *, kept_bytes: int = _KEPT_BYTES
    ) -> None:
        self._processor = processor
        self._bos = bos
        self._kept = _Recent(kept_bytes)

    def encode(self, text: str, media: Sequence[Decoded]) -> tuple[list[int], list[MediaSpan]]:
        """Token ids with one BOS, and the spans of all media. Raises RowError."""
        pictures = [medium for medium in media if isinstance(medium, Picture)]
        clips = [medium for medium in media if isinstance(medium, Clip)]
        with row_error("media_error", "the model's processor refuses the row's media", "messages"):
            processed = self._processor.process(text, pictures, clips)
        _check_complete(processed, len(media))
        _check_ends_with_text(processed)
        token_ids = self._bos.apply(processed.token_ids)
        moved = len(token_ids) - len(processed.token_ids)
        sources: list[Decoded] = [*pictures, *clips]
        return token_ids, [
            MediaSpan(part.start + moved, part.end + moved, self._media(part, processed, sources))
            for part in processed.parts
        ]

    def _media(self, part: Part, processed: Processed, sources: Sequence[Decoded]) -> Media:
        own = [sources[source] for source in part.sources]
        digest = sha256(self._processor.identity.encode())
        for medium in own:
            digest.update(medium.digest)
        # A processor that pads an image to the size of its neighbours makes another of it.
        for name, array in sorted(part.inputs.items()):
            digest.update(f"{name} {array.shape}".encode())
        token_ids = processed.token_ids[part.start : part.end]
        thumbnails = (medium.thumbnail for medium in own if isinstance(medium, Picture))
        media = Media(digest.digest(), token_ids, part.inputs, next(thumbnails, b""))
        return self._kept.shared(media)


def _check_complete(processed: Processed, num_media: int) -> None:
    """A row is never answered without its media, whatever a processor may think."""
    shown = sorted(source for part in processed.parts for source in part.sources)
    if shown != list(range(num_media)):
        raise RowError(
            "media_error",
            f"the model's processor shows {len(shown)} of the row's {num_media} images and videos",
            param="messages",
        )


def _check_ends_with_text(processed: Processed) -> None:
    if any(part.end == len(processed.token_ids) for part in processed.parts):
        raise RowError(
            "media_error",
            "the prompt ends with an image or video; put text after it, or leave"
            " add_generation_prompt on",
            param="messages",
        )


class _Recent:
    """The latest media, of `max_bytes` at most, the one in use apart."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._media: OrderedDict[bytes, Media] = OrderedDict()
        self._nbytes = 0

    def shared(self, media: Media) -> Media:
        """The same medium of an earlier row if there is one, else this one."""
        known = self._media.get(media.digest)
        # A processor may treat an image by what it stands beside; then it is not the same.
        if known is not None and known.token_ids == media.token_ids:
            self._media.move_to_end(media.digest)
            return known
        if known is not None:
            self._nbytes -= self._media.pop(media.digest).nbytes
        self._media[media.digest] = media
        self._nbytes += media.nbytes
        while self._nbytes > self._max_bytes:
            self._nbytes -= self._media.popitem(last=False)[1].nbytes
        return media
