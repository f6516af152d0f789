"""The model's parts and the engines of all ranks: the same everywhere, or none."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, TypeVar

from batchrun import building, device, models
from batchrun.config import ModelConfig, RunConfig
from batchrun.engine import Engine
from batchrun.engine.sharing import Store
from batchrun.errors import ModelError, UsageError
from batchrun.models import LoadedModel, LoadedTokenizer, ModelFiles
from batchrun.ranks import Ranks

T = TypeVar("T")

# Other versions of these may take other turns.
_PACKAGES = ("mlx", "mlx-lm", "llguidance", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What rank 0 has every rank load and run. Most is as in RunConfig; `identity` is the model's,
    `basis` what all have to run on."""

    model: ModelConfig
    identity: str
    basis: list[str]
    max_num_seqs: int | None
    max_num_batched_tokens: int
    kv_bits: int | None
    keep_awake: bool
    grace: float

    @classmethod
    def by(cls, config: RunConfig, files: ModelFiles) -> Asked:
        return cls(
            model=replace(config.model, chat_template=None),  # rows come as tokens
            identity=files.identity,
            basis=_basis(),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            kv_bits=config.kv_bits,
            keep_awake=config.manners.keep_awake,
            grace=config.grace,
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Asked:
        return cls(**values | {"model": ModelConfig(**values["model"])})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find(asked: Asked) -> tuple[ModelFiles, LoadedTokenizer]:
    """The model of rank 0 on the machine of one that follows. Raises ModelError, UsageError."""
    if asked.basis != (basis := _basis()):
        raise ModelError(f"it has {', '.join(basis)}, and rank 0 {', '.join(asked.basis)}")
    files = models.locate(asked.model, lambda _: None)
    if files.identity != asked.identity:
        raise ModelError(f"its files of {files.name} are not those that rank 0 has; copy them")
    return files, models.load_tokenizer(files, asked.model)


def load(
    asked: Asked,
    find: Callable[[], tuple[ModelFiles, LoadedTokenizer]],
    machine: device.Device,
    ranks: Ranks,
) -> tuple[ModelFiles, LoadedModel]:
    """The model that `find` finds, or this rank's part. Raises ModelError."""
    room = min(ranks.gather(machine.memory_limit)) * ranks.size

    def part() -> tuple[ModelFiles, LoadedModel]:
        files, words = find()
        together = replace(machine, memory_limit=room)
        return files, models.load(files, asked.model, together, words, ranks)

    return _on_all(ranks, part)


def engine(
    asked: Asked, model: LoadedModel, machine: device.Device, ranks: Ranks, store: Store | None
) -> Engine:
    """This rank's engine. Raises ModelError."""
    device.fit(machine, model.weights_bytes)
    kv_bytes = min(ranks.gather(device.memory_for_kv(machine, model.weights_bytes)))

    def make() -> Engine:
        with ranks.step():
            return building.engine(asked, model, store, kv_bytes=kv_bytes, ranks=ranks)

    made = _on_all(ranks, make)
    if len(set(ranks.gather(repr(made.traits)))) > 1:
        raise ModelError(f"{model.name} turned out differently from rank to rank")
    return made


def _on_all(ranks: Ranks, do: Callable[[], T]) -> T:
    """What `do` gives here. Raises ModelError on all ranks where it raises on any."""
    if not ranks.are_many:
        return do()
    done: T | None = None
    fault: str | None = None
    try:
        done = do()
    except (ModelError, UsageError) as error:
        fault = str(error)
    faults = ranks.gather(fault and (fault if ranks.rank == 0 else f"{_here(ranks)}: {fault}"))
    if first := next(filter(None, faults), None):
        raise ModelError(first)
    assert done is not None
    return done


def _here(ranks: Ranks) -> str:
    return f"rank {ranks.rank} on {socket.gethostname()}"


def _basis() -> list[str]:
    packages = [f"{package} {version(package)}" for package in _PACKAGES]
    return [f"{device.prepare().kind} in {platform.system()}", *packages]
