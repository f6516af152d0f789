"""The flags of a run by their own names, and how they become a RunConfig.

The command and `batchrun.run` both come through here, so that defaults and checks exist once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from batchrun import remote, values
from batchrun.config import (
    ClusterConfig,
    EvaluationConfig,
    MannersConfig,
    MediaConfig,
    ModelConfig,
    OutputFormat,
    RunConfig,
    SourceConfig,
)
from batchrun.errors import RowError, UsageError
from batchrun.evaluation.judge import METRIC_NAMES
from batchrun.paths import check_output
from batchrun.records import Label, Sampling, Shape
from batchrun.sink import output_format
from batchrun.sink.explode import flat_fields
from batchrun.source.fields import Body
from batchrun.source.files import is_stream, resolve_inputs
from batchrun.source.sampling import read_sampling
from batchrun.source.shapes import flag_shape

_ANY_OUTPUT = "answers.parquet"
_SAMPLING = Sampling()
_SAMPLING_FLAGS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "stop")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Values as they were given. Durations are seconds, or text such as "90s", "15m" and "2h";
    sizes are bytes, or text such as "500MB" and "10GB".

    `fail_on_error` is True (the first failed row), a share of all rows below 1, or a count.
    """

    model: str | None = None
    model_map: str | Sequence[str] = ()
    adapter: str | None = None
    dtype: str | None = None
    chat_template: str | None = None
    text_only: bool = False
    max_model_len: int | None = None
    trust_remote_code: bool = False
    system: str | None = None
    prompt: str | None = None
    image: str | Sequence[str] = ()
    video: str | Sequence[str] = ()
    media_root: str | Path | None = None
    allow_private_hosts: bool = False
    video_fps: float = MediaConfig.video_fps
    limit: int | None = None
    shard: str | None = None
    keep: str | Sequence[str] = ()
    keep_all: bool = False
    max_tokens: int = _SAMPLING.max_tokens
    temperature: float = _SAMPLING.temperature
    top_p: float = _SAMPLING.top_p
    top_k: int = _SAMPLING.top_k
    min_p: float = _SAMPLING.min_p
    stop: str | Sequence[str] = ()
    seed: int | None = None
    choices: str | Sequence[str] | None = None
    label: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    reasoning_budget: int | None = None
    json_schema: str | Path | None = None
    regex: str | None = None
    explode: bool = False
    max_num_seqs: int | str | None = RunConfig.max_num_seqs
    max_num_batched_tokens: int = RunConfig.max_num_batched_tokens
    kv_bits: int | str | None = RunConfig.kv_bits
    window: int = RunConfig.window
    prefix_cache_dir: str | Path | None = None
    prefix_cache_size: int | str = "10GB"
    no_prefix_cache: bool = False
    format: str | None = None
    fresh: bool = False
    removed: str | None = None
    expected: str | None = None
    metric: str | None = None
    fail_on_error: bool | float | str | None = None
    max_time: float | str | None = None
    grace: float | str = RunConfig.grace
    quiet: bool = False
    wait: bool = False
    nice: int = MannersConfig.nice
    allow_sleep: bool = False
    ray: str | None = None
    workers: int | None = None
    log_file: str | Path | None = None

    @classmethod
    def from_names(cls, given: Mapping[str, Any]) -> Flags:
        """Raises TypeError for a name that is no flag's."""
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                nearest = get_close_matches(name, names, n=1)
                hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                raise TypeError(f"{name!r} is not a flag of a run{hint}")
        return cls(**given)

    def run_config(self, inputs: Sequence[str | Path], output: str | Path | None) -> RunConfig:
        """Raises UsageError where a value, an input or the output cannot work."""
        config, place = self._dry_config(inputs, output)
        if output is None:
            raise UsageError("no output: say where the answers go, as in -o answers.parquet")
        is_folder = _is_folder(config.output, config.format)
        check_output(place, config.source.inputs, is_folder=is_folder)
        return config

    def dry_config(self, inputs: Sequence[str | Path], output: str | Path | None) -> RunConfig:
        """The same where nothing is written: the output's place may be missing, or not said.

        Raises UsageError where a value or an input cannot work.
        """
        return self._dry_config(inputs, output)[0]

    def _dry_config(
        self, inputs: Sequence[str | Path], output: str | Path | None
    ) -> tuple[RunConfig, remote.Place]:
        # First: what follows --ray may be an input that was meant to follow INPUT.
        address = None if self.ray is None else values.ray_address(self.ray)
        source = self.source_config(inputs)
        place = remote.place(_ANY_OUTPUT if output is None else str(output))
        asked = self._asked_format(_ANY_OUTPUT if output is None else output)
        output_format(place.path, asked)
        prefixes, prefixes_url = values.prefix_cache(self.prefix_cache_dir)
        config = RunConfig(
            source=source,
            output=place.path,
            destination=place.url,
            model=self.model_config(),
            media=self.media_config(),
            manners=self._manners(),
            evaluation=self._evaluation(),
            cluster=self._cluster(address, source),
            format=asked,
            drops_removed=self._drops_removed(place.path, asked),
            explode=self._exploded(source, place.path, asked),
            max_num_seqs=self.checked_max_num_seqs(),
            max_num_batched_tokens=values.count(
                "max_num_batched_tokens", self.max_num_batched_tokens
            ),
            kv_bits=values.kv_bits(self.kv_bits),
            prefix_cache_dir=prefixes,
            prefix_cache_url=prefixes_url,
            prefix_cache_bytes=self.prefix_cache_bytes(),
            window=self.checked_window(),
            seed=values.seed(self.seed),
            model_map=values.model_map(values.strings(self.model_map), source.inputs),
            reasoning_budget=values.budget(self.reasoning_budget),
            fresh=self.fresh,
            fail_on_error=values.failures(self.fail_on_error),
            max_time=values.max_time(self.max_time),
            grace=values.duration("grace", self.grace),
            quiet=self.quiet,
        )
        return config, place

    def source_config(self, inputs: Sequence[str | Path]) -> SourceConfig:
        """The files that there are now: what arrives later is no part of the run.

        Raises UsageError.
        """
        return SourceConfig(
            inputs=tuple(resolve_inputs(tuple(map(str, inputs)))),
            system=self.system,
            prompt=self.prompt,
            images=values.strings(self.image),
            videos=values.strings(self.video),
            sampling=self._sampling(),
            shape=self._shape(),
            label=self._label(),
            keep=self._kept(),
            expected=self.expected,
            limit=None if self.limit is None else values.count("limit", self.limit),
            shard=values.shard(self.shard),
        )

    def model_config(self) -> ModelConfig:
        length = self.max_model_len
        return ModelConfig(
            model=self.model,
            adapter=self.adapter,
            dtype=values.choice("dtype", self.dtype, values.DTYPES),
            max_model_len=None if length is None else values.count("max_model_len", length),
            trust_remote_code=self.trust_remote_code,
            chat_template=self.chat_template,
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
            text_only=self.text_only,
        )

    def media_config(self) -> MediaConfig:
        """Raises UsageError for a root that is no folder."""
        return MediaConfig(
            root=values.media_root(self.media_root),
            allow_private_hosts=self.allow_private_hosts,
            video_fps=values.positive("video_fps", self.video_fps),
        )

    def _cluster(self, address: str | None, source: SourceConfig) -> ClusterConfig | None:
        if address is None:
            if self.workers is not None:
                raise UsageError("--workers needs --ray, which runs them")
            return None
        if source.shard is not None:
            raise UsageError("--shard and --ray both split the rows: choose one")
        if self.model_map:
            raise UsageError("--ray runs one model: give each of --model-map a run of its own")
        stream = next(filter(is_stream, source.inputs), None)
        if stream is not None:
            raise UsageError(f"--ray cannot read {stream}: write the rows to a file first")
        workers = None if self.workers is None else values.count("workers", self.workers)
        return ClusterConfig(address=address, workers=workers)

    def _evaluation(self) -> EvaluationConfig | None:
        metric = values.choice("metric", self.metric, METRIC_NAMES)
        if self.expected is None:
            if metric is not None:
                raise UsageError("--metric needs --expected, the column with the right answers")
            return None
        return EvaluationConfig(expected=self.expected, metric=metric or METRIC_NAMES[0])

    def _kept(self) -> tuple[str, ...] | None:
        """What is expected of an answer has to come along to where it is judged."""
        if self.keep_all:
            return None
        expected = () if self.expected is None else (self.expected,)
        return tuple(dict.fromkeys((*values.strings(self.keep), *expected)))

    def _manners(self) -> MannersConfig:
        return MannersConfig(
            wait=self.wait,
            nice=values.nice(self.nice),
            keep_awake=not self.allow_sleep,
            log_file=None if self.log_file is None else values.here("log_file", self.log_file),
        )

    def prefix_cache_bytes(self) -> int:
        nbytes = values.size("prefix_cache_size", self.prefix_cache_size)
        return 0 if self.no_prefix_cache else nbytes

    def checked_max_num_seqs(self) -> int | None:
        """None for auto. Raises UsageError."""
        return values.max_num_seqs(self.max_num_seqs)

    def checked_window(self) -> int:
        """Raises UsageError for a window that holds nothing."""
        return values.count("window", self.window)

    def _shape(self) -> Shape | None:
        choices = self.choices
        if isinstance(choices, str):
            choices = [choice.strip() for choice in choices.split(",")]
        schema = None if self.json_schema is None else values.here("json_schema", self.json_schema)
        shape = flag_shape(choices or (), schema, self.regex)
        if shape is not None:
            from batchrun.prepare.grammars import check

            check(shape)
        return shape

    def _asked_format(self, output: str | Path) -> OutputFormat | None:
        """A slash at the end says that the output is a folder."""
        asked = values.output_form(self.format)
        return "parts" if asked is None and str(output).endswith(os.sep) else asked

    def _drops_removed(self, output: Path, asked: OutputFormat | None) -> bool:
        choice = values.choice("removed", self.removed, values.REMOVED)
        if choice == "keep" and not _is_folder(output, asked):
            raise UsageError(
                "--removed keep needs a folder as output: a file has the rows of the input alone"
            )
        return choice == "drop"

    def _label(self) -> Label | None:
        if self.choices:
            return "only" if self.label else "also"
        if self.label:
            raise UsageError("--label needs --choices, which says what labels there are")
        return None

    def _exploded(
        self, source: SourceConfig, output: Path, asked: OutputFormat | None
    ) -> tuple[tuple[str, str], ...]:
        if not self.explode:
            return ()
        if output_format(output, asked) == "jsonl":
            raise UsageError("--explode makes columns, and only Parquet has those")
        if source.shape is None or source.shape.kind != "json":
            raise UsageError("--explode needs --json-schema, which says what columns there are")
        return flat_fields(json.loads(source.shape.source))

    def _sampling(self) -> Sampling:
        given = {name: getattr(self, name) for name in _SAMPLING_FLAGS}
        given["stop"] = list(values.strings(self.stop))
        aliases = tuple((name, values.flag(name)[2:]) for name in given)
        try:
            return read_sampling(Body(given, "--", aliases), _SAMPLING, is_chat=True)
        except RowError as error:
            raise UsageError(error.message) from None


def _is_folder(output: Path, asked: OutputFormat | None) -> bool:
    return asked == "parts" or (asked is None and output.is_dir())
