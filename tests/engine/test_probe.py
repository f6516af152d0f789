"""What a trial of a model finds out about it."""

from __future__ import annotations

import mlx.core as mx
import pytest

from batchrun.engine import attention, budget
from batchrun.engine.probe import probe
from tests.engine.tinymodels import load


def test_nested_caches_cost_what_they_keep_of_each_token(tiny_model):
    model = load(tiny_model("falcon_h1"))
    caches = model.make_cache()
    model(mx.array([[3, 4, 5]]), cache=caches)
    keys = [nested.caches[1].keys for nested in caches]
    per_token = sum(2 * array.shape[1] * array.shape[3] * array.itemsize for array in keys)
    costs = probe(model).costs
    longer, shorter = (sum(cost.bytes(tokens) for cost in costs) for tokens in (1000, 10))
    assert longer - shorter == 990 * per_token


def test_sharing_is_tried_in_decoding_too(tiny_model, monkeypatch):
    """Also where the prefix of the trial is too short to be shared in a run."""
    monkeypatch.setattr(budget, "SHARED_FROM", 64)
    model = load(tiny_model("llama"))
    attention.install(model)
    assert probe(model).unshareable is None

    def wrong(*_: object) -> attention._Part:
        raise ValueError("not for this model")

    monkeypatch.setattr(attention, "_shared_part", wrong)
    assert "not for this model" in (probe(model).unshareable or "")


@pytest.mark.parametrize("kind", ["llama", "gemma3", "falcon_h1"])
def test_models_whose_caches_hold_several_rows_batch(kind, tiny_model):
    assert probe(load(tiny_model(kind))).unbatchable is None
