"""RunConfig: everything a run is asked for, resolved once and then frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from batchrun.records import Label, Sampling, Shape

OutputFormat = Literal["parquet", "jsonl", "parts"]


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """What to read and how a row becomes a request.

    `inputs` are files, or "-" for stdin, as `resolve_inputs` gives them. `system` and `prompt` are
    Jinja2 templates over a data-set row's columns; with neither, rows must be requests themselves.
    `images` and `videos` name columns whose media go before a row's text. `sampling` holds the
    values of fields that a row leaves out, `shape` is that of answers to rows that name none,
    and `label` is asked of all rows whose answer is a choice.
    `keep` names input columns to carry along, that of the `expected` answers among them if there is
    one; None is all but those of media.
    `shard` (i, n) leaves every n-th row, the i-th the first of them.
    """

    inputs: tuple[str, ...]
    system: str | None = None
    prompt: str | None = None
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    shape: Shape | None = None
    label: Label | None = None
    keep: tuple[str, ...] | None = ()
    expected: str | None = None
    limit: int | None = None
    shard: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, in which form. `dtype` None leaves the choice to the device. `text_only` takes
    of a vision model the part that reads text. `tool_parser` and `reasoning_parser` take the place
    of those that the tokenizer declares; "none" reads neither."""

    model: str | None = None
    adapter: str | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    trust_remote_code: bool = False
    chat_template: str | None = None
    text_only: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None


@dataclass(frozen=True, kw_only=True)
class MediaConfig:
    """How images and videos are found. Files lie under `root`, a URL if it is text; None is the
    folder of the input that names them. `video_fps` frames of each second of a video are shown to
    the model."""

    root: Path | str | None = None
    allow_private_hosts: bool = False
    video_fps: float = 2.0


@dataclass(frozen=True, kw_only=True)
class MannersConfig:
    """How a run behaves on a machine that others use too. `wait` queues behind another run of the
    same output; `nice` lowers its priority, `log_file` also takes what is said on stderr."""

    wait: bool = False
    nice: int = 0
    keep_awake: bool = True
    log_file: Path | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Answers are judged by `metric` against the input column `expected`, which is kept."""

    expected: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Which Ray cluster to run on, by its address; "local" is one that the run starts and ends.
    `workers` None is one for each GPU, or for each machine where there are none."""

    address: str
    workers: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. `max_num_seqs` None finds out how many rows at once are fastest. `window` prompts
    are planned together. `kv_bits` None keeps the KV cache in full precision. Times are in
    seconds; `fail_on_error` is the number of failed rows (1 or more), or their share of all rows
    (below 1), that makes the run stop as failed; None never does.
    `reasoning_budget` is the most tokens of a block of reasoning.
    `explode` are the fields of JSON answers that get columns of their own, with their JSON types.
    `drops_removed` takes rows that the input no longer has out of a folder of parts.
    `destination` is the URL where the output goes from `output`, which is then a private copy.
    `model_map` has the models that rows name, as `ModelConfig.model` has them.
    `prefix_cache_dir` None is the usual folder, and `prefix_cache_url` is where more is kept;
    `prefix_cache_bytes` 0 keeps nothing there."""

    source: SourceConfig
    output: Path
    destination: str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    manners: MannersConfig = field(default_factory=MannersConfig)
    evaluation: EvaluationConfig | None = None
    cluster: ClusterConfig | None = None
    format: OutputFormat | None = None
    explode: tuple[tuple[str, str], ...] = ()
    model_map: tuple[tuple[str, str], ...] = ()
    max_num_seqs: int | None = 32
    max_num_batched_tokens: int = 2048
    kv_bits: int | None = None
    window: int = 4096
    prefix_cache_dir: Path | None = None
    prefix_cache_url: str | None = None
    prefix_cache_bytes: int = 10_000_000_000
    seed: int | None = None
    reasoning_budget: int | None = None
    fresh: bool = False
    drops_removed: bool = False
    fail_on_error: float | None = None
    max_time: float | None = None
    grace: float = 30.0
    quiet: bool = False
