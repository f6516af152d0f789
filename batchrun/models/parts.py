"""Which tokens of a prompt stand for which of its media, and each one's arrays apart.

Knows arrays and token ids only: no images, no text, no MLX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

Arrays = dict[str, "npt.NDArray[Any]"]

if TYPE_CHECKING:
    import numpy.typing as npt

    Kind = tuple[frozenset[int], int]
    Alone = Callable[[int], tuple[int, Arrays]]

_ABOUT_VIDEO = "video"  # in the names of all arrays about videos, and of no other


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Tokens `start` up to `end` stand for the media numbered `sources` (images first): one of
    them, or all where the processor's arrays cannot be told apart. Tokens that mark rows or tiles
    of an image are among them. `inputs` are what the model takes beside the tokens."""

    start: int
    end: int
    sources: tuple[int, ...]
    inputs: Arrays


@dataclass(frozen=True, slots=True, eq=False)
class Processed:
    """A prompt's token ids, and the parts of it that stand for media, in order of place."""

    token_ids: list[int]
    parts: list[Part]


def split(
    token_ids: list[int], arrays: Arrays, images: Kind, videos: Kind, alone: Alone
) -> list[Part]:
    """The parts of a prompt in order of place.

    images, videos: the token ids that stand for them, and how many there are. alone: how many
    tokens, and which arrays, one of the media has by its number if it is the only one.
    Raises ValueError where the tokens do not go with the media.
    """
    if not images[1] + videos[1]:
        return []
    ids = np.array(token_ids)
    places = _places(ids, images[0]), _places(ids, videos[0])
    if images[1] and videos[1] and images[0] & videos[0]:
        sources = tuple(range(images[1] + videos[1]))
        return [_whole(places[0], sources, arrays, len(ids))]
    of_videos = {name: array for name, array in arrays.items() if _ABOUT_VIDEO in name}
    of_images = {name: array for name, array in arrays.items() if name not in of_videos}
    if not images[1]:
        of_videos, of_images = arrays, {}
    parts = [
        *_split_kind(places[0], of_images, range(images[1]), len(ids), alone),
        *_split_kind(
            places[1], of_videos, range(images[1], images[1] + videos[1]), len(ids), alone
        ),
    ]
    return sorted(parts, key=lambda part: part.start)


def _places(ids: npt.NDArray[np.int64], wanted: frozenset[int]) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.isin(ids, list(wanted)))


def _split_kind(
    places: npt.NDArray[np.int64], arrays: Arrays, sources: range, length: int, alone: Alone
) -> list[Part]:
    if not sources:
        return []
    if not len(places):
        raise ValueError("the prompt has no tokens for its images or videos")
    if len(sources) == 1:
        return [_whole(places, tuple(sources), arrays, length)]
    apart = _by_grids(places, arrays, len(sources)) or _by_runs(places, arrays, len(sources))
    if apart is None:
        apart = _by_trial(places, sources, alone)
    if apart is None:
        return [_whole(places, tuple(sources), arrays, length)]
    return [
        # A slice of all images' array would keep the whole of it in memory.
        Part(
            int(own[0]),
            int(own[-1]) + 1,
            (source,),
            {name: array.copy() for name, array in inputs.items()},
        )
        for source, (own, inputs) in zip(sources, apart, strict=True)
    ]


def _whole(
    places: npt.NDArray[np.int64], sources: tuple[int, ...], arrays: Arrays, length: int
) -> Part:
    """One part for all of `places`; arrays with a number for each token are cut to them."""
    if not len(places):
        raise ValueError("the prompt has no tokens for its images or videos")
    start, end = int(places[0]), int(places[-1]) + 1
    inputs = {
        name: array[:, start:end] if array.shape == (1, length) else array
        for name, array in arrays.items()
    }
    return Part(start, end, sources, inputs)


def _by_grids(
    places: npt.NDArray[np.int64], arrays: Arrays, count: int
) -> list[tuple[npt.NDArray[np.int64], Arrays]] | None:
    """Where arrays have a row for each patch, and a grid of each image says how many it has."""
    grids = [array for name, array in arrays.items() if name.endswith("_grid_thw")]
    if len(grids) != 1 or grids[0].shape != (count, 3):
        return None
    patches = grids[0].prod(axis=1)
    total = int(patches.sum())
    if any(len(array) not in (total, count) for array in arrays.values()) or total == count:
        return None
    tokens, rest = np.divmod(patches * len(places), total)
    if rest.any():
        raise ValueError("the tokens for images or videos do not go with their sizes")
    own = np.split(places, np.cumsum(tokens)[:-1])
    ends = np.cumsum(patches)
    return [
        (
            own[index],
            {
                name: array[ends[index] - patches[index] : ends[index]]
                if len(array) == total
                else array[index : index + 1]
                for name, array in arrays.items()
            },
        )
        for index in range(count)
    ]


def _by_runs(
    places: npt.NDArray[np.int64], arrays: Arrays, count: int
) -> list[tuple[npt.NDArray[np.int64], Arrays]] | None:
    """Where each image has a stretch of tokens of its own, all of one length, and every array an
    entry for each."""
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    if len(runs) != count or len({len(run) for run in runs}) != 1:
        return None
    if any(len(array) != count for array in arrays.values()):
        return None
    return [
        (run, {name: array[index : index + 1] for name, array in arrays.items()})
        for index, run in enumerate(runs)
    ]


def _by_trial(
    places: npt.NDArray[np.int64], sources: range, alone: Alone
) -> list[tuple[npt.NDArray[np.int64], Arrays]] | None:
    """Where an image is processed the same whatever the others are: each alone says how many of
    the tokens are its own."""
    tokens, inputs = zip(*map(alone, sources), strict=True)
    if sum(tokens) != len(places):
        return None
    return list(zip(np.split(places, np.cumsum(tokens)[:-1]), inputs, strict=True))
