"""Keys and values in few bits: smaller, nearly the same, and no row depends on another's."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import median

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache

from batchrun.engine import Engine, kvbits
from batchrun.engine.kv import CacheTraits, DecodeCaches, PrefillCaches, is_plain
from batchrun.engine.probe import probe
from batchrun.records import Completion, Prefix
from tests.engine.fakes import CountingModel, by_row, engine, prompt, run
from tests.engine.test_sharing import rows_of, some_ids
from tests.engine.tinymodels import assert_greedy, load

# Rounding in prefill may move a number into the next of 256 steps; what that does to a
# log-probability is far below this.
NEAR_TIE = 0.05


@given(
    size=st.sampled_from([32, 64, 96, 128, 192, 576]),
    bits=st.sampled_from([8, 4]),
    dtype=st.sampled_from([mx.float32, mx.bfloat16]),
)
def test_numbers_stay_within_a_step_of_themselves(size, bits, dtype):
    array = mx.random.normal((2, 3, 5, size), dtype, key=mx.random.key(size))
    parts = kvbits.pack(array, bits)
    back = kvbits.unpack(parts, bits)
    assert (back.shape, back.dtype) == (array.shape, dtype)
    widest = mx.max(mx.abs(array)).item()
    own_rounding = 0.02 if dtype == mx.bfloat16 else 0.001
    off = mx.max(mx.abs(back - array)).item()
    assert off <= widest * (2 / (2**bits - 1) + own_rounding)
    group = kvbits.group_size(size)
    assert kvbits.nbytes(parts) * 8 * group == array.size * (group * bits + 2 * 8 * dtype.size)


@pytest.mark.parametrize(("size", "bits"), [(16, 8), (80, 4), (64, None)])
def test_what_does_not_go_into_groups_is_kept_as_it_is(size, bits):
    array = mx.random.normal((1, 2, 3, size))
    parts = kvbits.pack(array, bits)
    assert len(parts) == 1
    assert kvbits.unpack(parts, bits) is array


@pytest.fixture(params=[("llama", 64), ("qwen3", 32), ("gemma3", 64), ("lfm2", None)])
def model(request, tiny_model):
    """Plain layers, plain and sliding ones, plain and recurrent ones."""
    kind, head_dim = request.param
    if head_dim is None:
        return load(tiny_model(kind, num_attention_heads=2, num_key_value_heads=1))
    return load(tiny_model(kind, head_dim=head_dim))


def mixed_prompts(**sampling):
    rng = random.Random(12)
    outer = Prefix(some_ids(rng, 50), 3)
    inner = Prefix(outer.token_ids + some_ids(rng, 30), 3, outer)
    prompts = []
    for prefix, sizes in ((outer, [5, 1, 30]), (inner, [1, 17, 2]), (None, [70, 1, 12, 3, 140])):
        suffixes = [some_ids(rng, size) for size in sizes]
        prompts += rows_of(prefix, suffixes, len(prompts), ignore_eos=True, **sampling)
    return prompts


def scored(model, prompts, **options):
    finished = run(Engine(model, model.tokenizer, **options), prompts)
    assert all(isinstance(item, Completion) for item in finished)
    return {item.prompt.row.index: item for item in finished}


def assert_same(completion: Completion, alone: Completion) -> None:
    """The same tokens, up to where the row alone was undecided between two."""
    pairs = zip(completion.token_ids, alone.token_ids, strict=True)
    for place, (token, expected) in enumerate(pairs):
        score, other = alone.logprobs[place], completion.logprobs[place]
        assert other.logprob == pytest.approx(score.logprob, abs=NEAR_TIE)
        if token != expected:
            assert dict(score.top)[token] == pytest.approx(score.logprob, abs=NEAR_TIE)
            return


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_has_the_answer_of_the_row_alone(model, bits):
    """In any batch, order and company, with a shared prefix or the same tokens of its own."""
    prompts = mixed_prompts(max_tokens=10, logprobs=True, top_logprobs=5)
    bare = [replace(row, prefix=None) for row in prompts]
    alone = scored(model, bare, max_num_seqs=1, kv_bits=bits)
    for rows, seqs, tokens in ((prompts, 4, 32), (prompts[::-1], 16, 2048), (bare, 7, 100)):
        options = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
        for index, completion in scored(model, rows, kv_bits=bits, **options).items():
            assert_same(completion, alone[index])


class Rounding(KVCache):
    """What the engine is held against: upstream's cache, rounded when prefill is over and with
    every token after that."""

    def __init__(self, bits: int):
        super().__init__()
        self.kv_bits = bits
        self.is_decoding = False

    def update_and_fetch(self, keys, values):
        if self.is_decoding:
            keys, values = self.rounded(keys), self.rounded(values)
        return super().update_and_fetch(keys, values)

    def begin_decoding(self):
        self.is_decoding = True
        if self.keys is not None:
            self.keys, self.values = self.rounded(self.keys), self.rounded(self.values)

    def rounded(self, array):
        group = 64 if array.shape[-1] % 64 == 0 else 32
        packed = mx.quantize(array, group_size=group, bits=self.kv_bits)
        return mx.dequantize(*packed, group_size=group, bits=self.kv_bits)


@pytest.mark.parametrize("bits", [8, 4])
def test_decoding_is_that_of_upstreams_cache_rounded(model, bits):
    prompts = mixed_prompts(max_tokens=12)
    answers = by_row(run(Engine(model, model.tokenizer, max_num_seqs=5, kv_bits=bits), prompts))
    for row in prompts:
        caches = [Rounding(bits) if is_plain(c) else c for c in model.make_cache()]
        if row.token_ids[:-1]:
            model(mx.array([row.token_ids[:-1]]), cache=caches)
        for cache in caches:
            if isinstance(cache, Rounding):
                cache.begin_decoding()
        token = row.token_ids[-1]
        for place, answer in enumerate(answers[row.row.index]):
            logits = model(mx.array([[token]]), cache=caches)[0, -1]
            short = (mx.max(logits) - logits[answer]).item()
            assert short <= NEAR_TIE, f"row {row.row.index}, token {place}"
            token = answer


def test_eight_bits_are_close_to_full_precision(model):
    """Random weights make attention jump from token to token, so not every row stays near."""
    prompts = mixed_prompts(max_tokens=1, logprobs=True, top_logprobs=20)
    full, packed = scored(model, prompts), scored(model, prompts, kv_bits=8)
    off = []
    for index, completion in full.items():
        exact, rounded = (dict(item.logprobs[0].top) for item in (completion, packed[index]))
        shared = exact.keys() & rounded.keys()
        assert len(shared) >= 10
        off.append(max(abs(exact[token] - rounded[token]) for token in shared))
    assert 0 < median(off) < 0.3


def test_where_attention_is_upstreams(tiny_model, monkeypatch):
    """As on Metal and CUDA, for rows without a shared prefix."""
    monkeypatch.setattr("batchrun.engine.fastmath.IS_ON", False)
    model = load(tiny_model("llama", head_dim=64))
    prompts = mixed_prompts(max_tokens=12, logprobs=True, top_logprobs=5)
    bare = [replace(row, prefix=None) for row in prompts]
    alone = scored(model, bare, max_num_seqs=1, kv_bits=8)
    for index, completion in scored(model, prompts, kv_bits=8).items():
        assert_same(completion, alone[index])
    monkeypatch.undo()
    for index, completion in scored(model, bare, kv_bits=8).items():
        assert_same(completion, alone[index])


def test_off_is_full_precision(tiny_model):
    model = load(tiny_model("llama", head_dim=64))
    for item in run(Engine(model, model.tokenizer), mixed_prompts(max_tokens=12)):
        assert_greedy(model, item.prompt.token_ids, item.token_ids, f"row {item.prompt.row.index}")


@pytest.mark.parametrize(("head_dim", "bits", "times"), [(64, 8, 3.5), (32, 8, 3.2), (64, 4, 6.3)])
def test_memory_of_a_batch(tiny_model, head_dim, bits, times):
    model = load(tiny_model("llama", head_dim=head_dim))
    rng = random.Random(3)
    prompts = [prompt(i, some_ids(rng, 120), max_tokens=30, ignore_eos=True) for i in range(16)]
    peaks = []
    for kv_bits in (None, bits):
        runner = Engine(model, model.tokenizer, kv_bits=kv_bits)
        run(runner, prompts)
        peaks.append(runner.stats.kv_bytes_peak)
    assert peaks[0] >= times * peaks[1]


def test_the_budget_knows_of_the_smaller_rows(tiny_model):
    model = load(tiny_model("llama", head_dim=64))
    rng = random.Random(4)
    prompts = [prompt(i, some_ids(rng, 40), max_tokens=10, ignore_eos=True) for i in range(20)]
    per_token = 2 * 2 * 2 * 64 * 4  # layers, keys and values, KV heads, head size, float32
    budget = 4 * 50 * per_token
    at_once = []
    for bits in (None, 8, 4):
        runner = Engine(model, model.tokenizer, kv_bytes=budget, kv_bits=bits)
        assert len(by_row(run(runner, prompts))) == 20
        at_once.append(runner.stats.peak_running)
    assert at_once == [4, 14, 20]


def test_a_shared_prefix_is_packed_once_for_the_rows_that_decode_after_it(tiny_model):
    model = load(tiny_model("llama", head_dim=64))
    rng = random.Random(5)
    prefix = Prefix(some_ids(rng, 400), 8)
    prompts = rows_of(prefix, [some_ids(rng, 5) for _ in range(8)], 0, max_tokens=4)
    runner = Engine(model, model.tokenizer, kv_bits=8)
    run(runner, prompts)
    whole = 400 * 2 * 2 * 2 * 64 * 4
    own = 8 * 64 * 2 * 2 * 2 * (64 + 8)
    assert runner.stats.kv_bytes_peak == whole + whole * 72 // 256 + own
    costs = probe(model, 8).costs
    assert sum(cost.prefix_bytes(400) for cost in costs) == whole + whole * 72 // 256


class Kept:
    """A store of one prefix, in memory."""

    length, nbytes, seconds_saved = 0, 0, 1.0

    def find(self, token_ids):
        return self if self.length and token_ids[: self.length] == self.token_ids else None

    def load(self, found):
        return self.caches

    def save(self, token_ids, caches, seconds):
        self.token_ids, self.caches, self.length = token_ids, caches, len(token_ids)


def test_stored_prefixes_are_in_full_precision_and_serve_any_bits(tiny_model):
    model = load(tiny_model("llama", head_dim=64))
    rng = random.Random(7)
    prefix = Prefix(some_ids(rng, 90), 4)
    prompts = rows_of(prefix, [some_ids(rng, 5) for _ in range(4)], 0, max_tokens=9)
    for first, second in ((8, 8), (8, None), (None, 8)):
        store = Kept()
        run(Engine(model, model.tokenizer, kv_bits=first, store=store), prompts)
        assert store.caches[0].keys.dtype == mx.float32
        runner = Engine(model, model.tokenizer, kv_bits=second, store=store)
        finished = run(runner, prompts)
        answers = by_row(finished)
        assert runner.stats.disk_tokens == 90
        assert sorted(item.disk_tokens for item in finished) == [0, 0, 0, 90]
        assert answers == by_row(run(Engine(model, model.tokenizer, kv_bits=second), prompts))


def test_rows_come_go_and_move_as_they_do_in_full_precision(tiny_model):
    """What a layer gives back after joins, steps, leaving and relayouts is what went in."""
    model = load(tiny_model("llama", head_dim=64))
    rng = random.Random(6)
    fetched = {}
    for bits in (None, 8):
        traits = CacheTraits(kv_bits=bits)
        caches = DecodeCaches(max_rows=8, traits=traits)
        rng.seed(6)
        for lengths in ([3, 40, 7], [70, 2]):
            new = PrefillCaches(model, lengths, [None] * len(lengths), traits)
            ids = [some_ids(rng, max(lengths)) for _ in lengths]
            model(mx.array(ids), cache=new.layers)
            caches.extend(new, range(len(lengths)))
        caches.filter([0, 4, 2])
        step = mx.random.normal((3, 2, 1, 64), key=mx.random.key(1))
        for _ in range(70):
            caches.begin_step()
            for layer in caches.layers:
                keys, _ = layer.update_and_fetch(step, step)
            caches.end_step()
        seen = caches.ring.bias == 0
        fetched[bits] = mx.where(seen.swapaxes(-1, -2), keys, 0.0)
    assert mx.allclose(fetched[8], fetched[None], atol=0.05).item()
    assert not mx.array_equal(fetched[8], fetched[None]).item()


def test_layers_that_do_not_fit_stay_as_they_are_with_a_note(tiny_model):
    model = load(tiny_model("llama", head_dim=16))
    runner = Engine(model, model.tokenizer, kv_bits=8)
    assert any("heads of 16 numbers" in note for note in runner.stats.notes)
    for item in run(runner, mixed_prompts(max_tokens=8)):
        assert_greedy(model, item.prompt.token_ids, item.token_ids, f"row {item.prompt.row.index}")


def test_models_without_plain_layers_are_accepted_with_a_note(tiny_model):
    model = load(tiny_model("mamba2"))
    runner = Engine(model, model.tokenizer, kv_bits=8)
    assert any("--kv-bits" in note for note in runner.stats.notes)
    rng = random.Random(8)
    for item in run(runner, [prompt(i, some_ids(rng, 9), max_tokens=5) for i in range(4)]):
        assert_greedy(model, item.prompt.token_ids, item.token_ids, f"row {item.prompt.row.index}")


def test_a_model_whose_attention_is_its_own_is_served_too():
    prompts = [prompt(i, [i, i + 1], max_tokens=9) for i in range(6)]
    assert by_row(run(engine(CountingModel(), kv_bits=8), prompts))[3] == list(range(5, 14))
