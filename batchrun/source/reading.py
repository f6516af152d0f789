"""The input from end to end: files -> rows -> requests.

Memory is that of one row, or of one batch of a Parquet file, however long the input is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from batchrun.config import SourceConfig
from batchrun.errors import RowError, UsageError
from batchrun.records import Failure, Request, Row
from batchrun.remote import is_url
from batchrun.source import delimited, jsonl
from batchrun.source.attach import MediaColumns, with_media
from batchrun.source.cells import parse_structured, parse_typed
from batchrun.source.draws import counted
from batchrun.source.files import Kind, RawRow, is_compressed, is_stream, kind_of
from batchrun.source.forms import read_custom_id, read_request
from batchrun.source.templates import (
    BUILT_IN,
    Template,
    chat_messages,
    reads_nothing,
    with_system,
)

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, Any]


def read_requests(config: SourceConfig) -> Iterator[Request | Failure]:
    """The requests of all rows in order, with a Failure in the place of each faulty row.

    With `config.prompt` every row is data: its columns fill the templates, and its sampling is
    `config.sampling` whole. Without it rows are requests; `config.system` is then put before
    the messages of chat rows that have no system message of their own. Either way the images and
    videos of the columns that `config` names for them become parts of the messages.

    Raises UsageError at once for templates that cannot work and for a named column that no file
    has, and RunError, after the rows before it, for a file that cannot be read to its end.
    """
    recipe = _Recipe(
        config,
        _template(config.prompt, "--prompt"),
        _template(config.system, "--system"),
        MediaColumns(config.images, config.videos),
    )
    _check_columns(config)
    rows = islice(_requests(recipe), config.limit)
    return rows if config.shard is None else _of_shard(counted(rows), *config.shard)


def count_rows(config: SourceConfig) -> int | None:
    """How many rows `read_requests` gives; None where only reading them would tell.

    Lines are counted, which takes a second a GB. Raises RunError for a file that cannot be read.
    """
    total = 0
    for path in config.inputs:
        rows = _count(path, config.limit)
        if rows is None:
            return None
        total += rows
    total = total if config.limit is None else min(total, config.limit)
    return (
        total if config.shard is None else len(range(config.shard[0] - 1, total, config.shard[1]))
    )


def first_columns(path: str) -> Columns:
    """The columns of the first row of a file that can be read; none where there is no such row."""
    kind = kind_of(path)
    rows = _raw_rows(path, kind, _Recipe(SourceConfig(inputs=(path,)), None, None, MediaColumns()))
    return next((columns for _, columns in rows if not isinstance(columns, RowError)), {})


def kept_schema(config: SourceConfig) -> pa.Schema | None:
    """The types of the kept columns' values; None unless all inputs are Parquet.

    For a configuration that `read_requests` took. Raises UsageError for columns of types that do
    not go together.
    """
    if any(kind_of(path) != "parquet" for path in config.inputs):
        return None
    return _kept_schema(config)


@dataclass(frozen=True)
class _Recipe:
    """How one row becomes a request."""

    config: SourceConfig
    prompt: Template | None
    system: Template | None
    media: MediaColumns

    def request(self, row: Row, columns: Columns | RowError, kind: Kind) -> Request | Failure:
        if isinstance(columns, RowError):
            return Failure(row, columns)
        row = replace(row, kept=self._kept(columns))
        try:
            row = replace(row, custom_id=read_custom_id(columns))
            return self._labelled(self._made(row, columns, kind))
        except RowError as error:
            return Failure(row, error)

    def _kept(self, columns: Columns) -> Columns:
        if self.config.keep is None:
            return self.media.others(columns)
        return {name: columns.get(name) for name in self.config.keep}

    def _labelled(self, request: Request) -> Request:
        is_choice = request.shape is not None and request.shape.kind == "choice"
        if not is_choice or self.config.label is None:
            return request
        if request.prompt_logprobs is not None:
            raise RowError(
                "unsupported_parameter",
                "prompt_logprobs has no place beside --choices; ask for them in another run",
                param="prompt_logprobs",
            )
        return replace(request, label=self.config.label)

    def _made(self, row: Row, columns: Columns, kind: Kind) -> Request:
        media = self.media.parts(_without_empty(columns) if kind in ("csv", "tsv") else columns)
        if self.prompt is not None:
            messages = with_media(chat_messages(columns, self.prompt, self.system), media)
            return Request(
                row=row,
                sampling=self.config.sampling,
                messages=messages,
                shape=self.config.shape,
                is_blank=not media and reads_nothing(columns, self.prompt, self.system),
            )
        fields, config = _parsed(self.media.others(columns), kind), self.config
        request = read_request(row, fields, config.sampling, media, config.shape)
        return request if self.system is None else with_system(request, columns, self.system)

    def columns(self, names: list[str]) -> list[str] | None:
        """Which of a Parquet file's columns are needed; None for all of them.

        All too where a template names one that is not there, so that its error can list them.
        """
        if self.prompt is None or self.config.keep is None:
            return None
        used = [template.columns for template in (self.prompt, self.system) if template]
        if any(needed is None or not needed <= set(names) for needed in used):
            return None
        wanted = BUILT_IN.union(
            ["custom_id"], self.config.keep, self.media.names, *(n for n in used if n)
        )
        return [name for name in names if name in wanted] or None


def _of_shard(
    rows: Iterator[Request | Failure], shard: int, num_shards: int
) -> Iterator[Request | Failure]:
    return (row for row in rows if row.row.index % num_shards == shard - 1)


def _template(source: str | None, flag: str) -> Template | None:
    return None if source is None else Template(source, flag)


def _requests(recipe: _Recipe) -> Iterator[Request | Failure]:
    indices = count()
    for path in recipe.config.inputs:
        kind = kind_of(path)
        for line, columns in _raw_rows(path, kind, recipe):
            yield recipe.request(Row(next(indices), path, line), columns, kind)


def _raw_rows(path: str, kind: Kind, recipe: _Recipe) -> Iterator[RawRow]:
    if kind == "jsonl":
        return jsonl.read(path)
    if kind == "parquet":
        return _parquet().read(path, recipe.columns(_parquet().read_schema(path).names))
    return delimited.read(path, kind)


def _parsed(columns: Columns, kind: Kind) -> Columns:
    """The columns with fields that are JSON text in their kind of file as values."""
    if kind == "jsonl":
        return columns
    return parse_structured(columns) if kind == "parquet" else parse_typed(columns)


def _without_empty(columns: Columns) -> Columns:
    """Cells of text alone: those without any are null."""
    return {name: value or None for name, value in columns.items()}


def _count(path: str, limit: int | None) -> int | None:
    kind = kind_of(path)
    if kind == "parquet":
        return int(_parquet().count(path))
    if kind != "jsonl" or is_url(path) or is_stream(path) or is_compressed(path):
        return None
    return jsonl.count(path, limit)


def _check_columns(config: SourceConfig) -> None:
    """Raises UsageError for a named column that no table has; in JSONL any row may have it.

    Headers that cannot be used are found here too, before anything is read.
    """
    tables = [_column_names(path, kind_of(path)) for path in config.inputs if not is_stream(path)]
    names = {name for table in tables for name in table or ()}
    if None in tables or len(tables) < len(config.inputs):
        return
    named = {
        "--expected": () if config.expected is None else (config.expected,),
        "--keep": config.keep or (),
        "--image": config.images,
        "--video": config.videos,
    }
    for flag, name in ((flag, name) for flag, columns in named.items() for name in columns):
        if name not in names:
            raise UsageError(
                f"{flag} {name}: no such column; the input has {', '.join(sorted(names))}"
            )


def _column_names(path: str, kind: Kind) -> list[str] | None:
    if kind == "jsonl":
        return None
    if kind == "parquet":
        return list(_parquet().read_schema(path).names)
    return delimited.read_header(path, kind)


def _kept_schema(config: SourceConfig) -> pa.Schema:
    import pyarrow as pa

    keep, media = config.keep, MediaColumns(config.images, config.videos).names
    schemas = [_parquet().read_schema(path).remove_metadata() for path in config.inputs]
    kept = [
        pa.schema([f for f in schema if (f.name not in media if keep is None else f.name in keep)])
        for schema in schemas
    ]
    try:
        together = pa.unify_schemas(kept, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        problem = str(error).partition("\n")[0]
        raise UsageError(f"kept columns differ between input files: {problem}") from error
    return together if keep is None else pa.schema([together.field(name) for name in keep])


def _parquet() -> Any:
    """The Parquet reader, loaded only when there is Parquet to read: Arrow is slow to load."""
    from batchrun.source import parquet

    return parquet
