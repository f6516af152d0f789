"""How much of the machine's own limit the engine reaches, in prefill and in decode.

    python benchmarks/roofline.py
    python benchmarks/roofline.py --model mlx-community/Qwen3-0.6B-4bit

The limit is the time that the model's matrix products alone would take: their operations at the
rate of one large product, or their weights at the rate at which memory is read, whichever is
longer. The rest of a step (attention, activations, norms, sampling, the loop) is what keeps it from
that. Machine and engine are measured in turns, and the best of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import click

from batchrun import device, models
from batchrun.config import ModelConfig
from batchrun.engine import Engine
from batchrun.records import Prompt, Request, Row, Sampling

import mlx.core as mx  # isort: skip  after the engine, which loads the BLAS
import mlx.nn as nn  # isort: skip

PROMPT_TOKENS = 40
PREFILL = (8, 128)  # rows, tokens each
DECODE_ROWS = (1, 8, 32)
STEPS = 24


@dataclass(frozen=True)
class Machine:
    """Float operations and bytes a second."""

    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Products:
    """The model's weight matrices: how many numbers they hold, with and without the one that
    gives the logits, which prefill leaves out; and the bytes of a number."""

    all: int
    in_layers: int
    item_bytes: int

    def seconds(self, tokens: int, machine: Machine, *, with_logits: bool) -> float:
        numbers = self.all if with_logits else self.in_layers
        return max(
            2 * tokens * numbers / machine.flops, numbers * self.item_bytes / machine.bandwidth
        )


@click.command()
@click.option("--model", help="A model's folder or Hub name.  [default: batchrun's default model]")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
def main(model: str | None, rounds: int) -> None:
    """Print ideal and real seconds of a prefill and of decode steps, and their ratio."""
    config = ModelConfig(model=model)
    loaded = models.load(models.locate(config, click.echo), config, device.prepare())
    products = _products(loaded)
    with device.limits(device.prepare()):
        machines, prefills = [], []
        decodes: dict[int, list[float]] = {rows: [] for rows in DECODE_ROWS}
        for _ in range(rounds):
            machines.append(_machine())
            prefills.append(_prefill_seconds(loaded))
            for rows in DECODE_ROWS:
                decodes[rows].append(_step_seconds(loaded, rows))
    machine = Machine(max(m.flops for m in machines), max(m.bandwidth for m in machines))
    print(f"{machine.flops / 1e9:.0f} GFLOP/s, {machine.bandwidth / 1e9:.1f} GB/s")
    tokens = PREFILL[0] * PREFILL[1]
    ideal = products.seconds(tokens, machine, with_logits=False)
    _print(f"prefill, {PREFILL[0]} x {PREFILL[1]} tokens", ideal, min(prefills))
    for rows, seconds in decodes.items():
        ideal = products.seconds(rows, machine, with_logits=True)
        _print(f"decode step, {rows} rows", ideal, min(seconds))


def _print(name: str, ideal: float, real: float) -> None:
    print(f"{name:26} ideal {ideal:7.3f} s  real {real:7.3f} s  share {ideal / real:.2f}")


def _products(model: models.LoadedModel) -> Products:
    modules = model.modules()
    if not any(isinstance(part, nn.Embedding) for part in modules):
        raise click.UsageError("weights stay quantised here, and their products are not these")
    linear = sum(part.weight.size for part in modules if isinstance(part, nn.Linear))
    # Tied embeddings give the logits; an lm_head is among the linear layers already.
    tied = max(part.weight.size for part in modules if isinstance(part, nn.Embedding))
    has_head = "lm_head" in model.module
    in_layers = linear - tied if has_head else linear
    return Products(in_layers + tied, in_layers, item_bytes=4 if model.dtype == "float32" else 2)


def _machine() -> Machine:
    a, b = mx.random.normal((2048, 2048)), mx.random.normal((2048, 2048))
    vector, matrix = mx.random.normal((1, 4096)), mx.random.normal((16384, 4096))
    mx.eval(a, b, vector, matrix)
    product = _best(lambda: a @ b)
    reading = _best(lambda: vector @ matrix.T)
    return Machine(2 * 2048**3 / product, matrix.nbytes / reading)


def _best(work: Callable[[], mx.array], times: int = 5) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        mx.eval(work())
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _prefill_seconds(model: models.LoadedModel) -> float:
    rows, tokens = PREFILL
    engine = _engine(model, rows)
    for _ in engine.run(_prompts(rows, tokens + 1, max_tokens=1)):
        pass
    return engine.stats.prefill_seconds


def _step_seconds(model: models.LoadedModel, rows: int) -> float:
    engine = _engine(model, rows)
    turns = engine.run(_prompts(rows, PROMPT_TOKENS, max_tokens=STEPS + 2))
    best, before = float("inf"), (0, 0.0)
    for _ in turns:
        steps, seconds = engine.stats.decode_steps, engine.stats.decode_seconds
        if steps > before[0] and before[0] > 1 and engine.stats.running == rows:
            best = min(best, (seconds - before[1]) / (steps - before[0]))
        before = (steps, seconds)
    return best


def _engine(model: models.LoadedModel, rows: int) -> Engine:
    return Engine(model, model.tokenizer.tokenizer, max_num_seqs=rows)


def _prompts(rows: int, tokens: int, *, max_tokens: int) -> list[Prompt]:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    prompts = []
    for row in range(rows):
        token_ids = [(row * 7 + place * 13) % 1000 + 10 for place in range(tokens)]
        request = Request(Row(row, "-", row + 1), sampling, prompt=token_ids)
        prompts.append(Prompt(request, token_ids, key=str(row)))
    return prompts


if __name__ == "__main__":
    main()
