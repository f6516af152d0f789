"""What a run is made of, as its configuration asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchrun import folders, log, models
from batchrun.config import RunConfig
from batchrun.engine import Engine
from batchrun.engine.sharing import Store
from batchrun.ledger import Ledger
from batchrun.prefixes.store import PrefixStore, fingerprint
from batchrun.prepare import Preparer
from batchrun.ranks import ALONE, Ranks
from batchrun.report.meter import Meter
from batchrun.report.progress import Progress
from batchrun.sink import Journal

if TYPE_CHECKING:
    from batchrun.together.setup import Asked


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
    asked: RunConfig | Asked,
    model: models.LoadedModel,
    store: Store | None,
    *,
    kv_bytes: int,
    ranks: Ranks = ALONE,
) -> Engine:
    """The engine for a model whose weights are in memory. Raises ModelError."""
    return Engine(
        model,
        model.tokenizer.tokenizer,
        model.eos_token_ids,
        max_num_seqs=asked.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens,
        kv_bytes=kv_bytes,
        kv_bits=asked.kv_bits,
        store=store,
        ranks=ranks,
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
