"""What a run is made of, as its configuration asks."""

from __future__ import annotations

from batchrun import device, folders, log, models
from batchrun.config import RunConfig
from batchrun.engine import Engine
from batchrun.ledger import Ledger
from batchrun.prefixes.store import PrefixStore, fingerprint
from batchrun.prepare import Preparer
from batchrun.report.meter import Meter
from batchrun.report.progress import Progress
from batchrun.sink import Journal


def preparer(
    config: RunConfig, files: models.ModelFiles, words: models.LoadedTokenizer
) -> Preparer:
    """To be closed."""
    return Preparer(
        words.tokenizer,
        model=_identity(config, files),
        context_length=files.context_length,
        vocab_size=files.vocab_size,
        eos_token_ids=words.eos_token_ids,
        run_seed=config.seed,
        processor=words.processor,
        media=config.media,
        dialect=words.dialect,
        reasoning_budget=config.reasoning_budget,
    )


def ledger(
    journal: Journal, meter: Meter, files: models.ModelFiles, words: models.LoadedTokenizer
) -> Ledger:
    return Ledger(
        journal,
        meter,
        model=files.name,
        decoder=words.tokenizer,
        dialect=words.dialect,
        ends=words.eos_token_ids,
    )


def progress(config: RunConfig) -> Progress:
    """To be closed."""
    in_log = None if config.manners.log_file is None else Progress(stream=log.LogStream())
    return Progress(quiet=config.quiet, also=in_log)


def prefix_store(config: RunConfig, model: models.LoadedModel) -> PrefixStore | None:
    """To be closed; None where prefixes are not to be kept."""
    if not config.prefix_cache_bytes:
        return None
    return PrefixStore(
        folders.prefix_cache(config.prefix_cache_dir),
        fingerprint=fingerprint(model.identity, model.dtype),
        model_name=model.name,
        max_bytes=config.prefix_cache_bytes,
        url=config.prefix_cache_url,
    )


def engine(
    config: RunConfig,
    model: models.LoadedModel,
    machine: device.Device,
    store: PrefixStore | None,
    *,
    num_sharing: int = 1,
) -> Engine:
    """The engine for a model whose weights are in memory. `num_sharing` engines in processes of
    their own share the device's memory."""
    device.fit_cache(machine, model.weights_bytes)
    return Engine(
        model,
        model.tokenizer.tokenizer,
        model.eos_token_ids,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        kv_bytes=device.memory_for_kv(machine, model.weights_bytes) // num_sharing,
        kv_bits=config.kv_bits,
        store=store,
    )


def _identity(config: RunConfig, files: models.ModelFiles) -> str:
    """What decides the model's answers."""
    parts = {
        "KV cache of bits": config.kv_bits,
        "tool parser": config.model.tool_parser,
        "reasoning parser": config.model.reasoning_parser,
    }
    named = [f", {name} {value}" for name, value in parts.items() if value is not None]
    return files.identity + "".join(named)
