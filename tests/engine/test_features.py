"""Which media go through the vision tower, and what is kept of them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from batchrun.engine import features as room
from batchrun.engine.features import FeatureCache, bytes_to_keep
from batchrun.engine.stats import EngineStats
from batchrun.models.loaded import Features
from batchrun.records import Media

TOKENS, SIZE = 4, 8
NBYTES = TOKENS * SIZE * 4


class Tower:
    """Remembers what it was asked to encode, call by call."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def encode(self, media: list[Media]) -> list[Features]:
        self.calls.append([medium.digest[0] for medium in media])
        return [
            Features(mx.full((TOKENS, SIZE), medium.digest[0]), np.ones(TOKENS, dtype=np.bool_))
            for medium in media
        ]


def image(number: int, nbytes: int = 100) -> Media:
    pixels = np.zeros(nbytes, dtype=np.uint8)
    return Media(bytes([number]) * 32, [7] * TOKENS, {"pixel_values": pixels})


def cache(
    tower: Any, upcoming: tuple[Media, ...] = (), max_bytes: int = 100 * NBYTES
) -> FeatureCache:
    return FeatureCache(tower, EngineStats(), lambda: upcoming, max_bytes)


def test_an_image_is_encoded_once_however_often_it_comes():
    tower = Tower()
    kept = cache(tower)
    first = kept.of([image(1), image(2), image(1)])
    again = kept.of([image(2)])
    assert tower.calls == [[1, 2]]
    assert again[image(2).digest] is first[image(2).digest]


def test_each_image_gets_its_own_features():
    found = cache(Tower()).of([image(number) for number in range(1, 6)])
    values = {digest[0]: features.embeds[0, 0].item() for digest, features in found.items()}
    assert values == {number: number for number in range(1, 6)}


def test_images_that_wait_go_along_when_there_is_a_call():
    tower = Tower()
    kept = cache(tower, upcoming=(image(1), image(2), image(3)))
    kept.of([image(1)])
    kept.of([image(3)])
    assert tower.calls == [[1, 2, 3]]


def test_no_call_is_made_for_waiting_images_alone():
    tower = Tower()
    kept = cache(tower, upcoming=(image(2),))
    assert kept.of([]) == {}
    assert tower.calls == []


def test_a_call_takes_a_bounded_amount_of_pixels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "CALL_BYTES", 250)
    tower = Tower()
    kept = cache(tower, upcoming=(image(8), image(9)))
    kept.of([image(number) for number in range(1, 4)] + [image(4, nbytes=900)])
    assert tower.calls == [[1, 2], [3], [4]]


def test_the_oldest_features_go_when_room_runs_out():
    tower = Tower()
    kept = cache(tower, max_bytes=2 * NBYTES)
    kept.of([image(1)])
    kept.of([image(2)])
    kept.of([image(1)])
    kept.of([image(3)])  # 2 goes
    kept.of([image(1)])
    kept.of([image(2)])
    assert tower.calls == [[1], [2], [3], [2]]


def test_more_than_there_is_room_for_is_still_served():
    kept = cache(Tower(), max_bytes=NBYTES)
    assert len(kept.of([image(number) for number in range(1, 9)])) == 8


@pytest.mark.parametrize(("weights", "kept"), [(1, 4), (5, 5), (1 << 20, 512)])
def test_features_do_not_outgrow_the_model(weights: int, kept: int):
    """In MB of an array that is never computed."""

    class Model:
        def modules(self) -> list[dict[str, Any]]:
            return [{"weight": mx.zeros((weights, 1 << 20), mx.uint8), "bias": None}]

    assert bytes_to_keep(Model()) == kept << 20
