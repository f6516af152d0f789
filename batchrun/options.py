"""The command's flags as click options, in the groups that --help shows them in.

Defaults come from `Flags`; here are only the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from batchrun.evaluation.judge import METRIC_NAMES
from batchrun.flags import DTYPES, FORMATS, KV_BITS, REMOVED, Flags

_Command = TypeVar("_Command", bound=Callable[..., Any])
_REST = "Other"
Decorator = Callable[[_Command], _Command]


class GroupedOption(click.Option):
    """An option that knows under which heading it is shown."""

    def __init__(self, *args: Any, group: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help shows its options group by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_groups(self.get_params(ctx), ctx, formatter)


def write_groups(
    params: Iterable[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Writes the help of all options among `params`, those without a heading last."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in params:
        record = param.get_help_record(ctx)
        if record is not None and isinstance(param, click.Option):
            group = param.group if isinstance(param, GroupedOption) else _REST
            groups.setdefault(group, []).append(record)
    rest = groups.pop(_REST, [])
    for heading, records in (*groups.items(), (_REST, rest)):
        with formatter.section(heading):
            formatter.write_dl(records)


def apply(options: tuple[Decorator[Any], ...]) -> Decorator[Any]:
    """One decorator that adds `options` in their order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _group(name: str) -> Callable[..., Decorator[Any]]:
    def option(*names: str, **kwargs: Any) -> Decorator[Any]:
        return click.option(*names, cls=GroupedOption, group=name, **kwargs)

    return option


_input = _group("Input")
_media = _group("Images and video")
_output = _group("Output")
_evaluation = _group("Evaluation")
_model = _group("Model")
_answers = _group("Answers (a row's own values win)")
_speed = _group("Speed and memory")
_run = _group("Run")

INPUT = (
    _input(
        "-i",
        "--input",
        "more_inputs",
        multiple=True,
        metavar="FILE",
        help="One more input, as if given without a flag. Repeatable.",
    ),
    _input(
        "--prompt",
        metavar="TEMPLATE",
        help="Turn each data row into a user message: a Jinja template over its columns.",
    ),
    _input(
        "--system",
        metavar="TEMPLATE",
        help="System message for rows without one of their own; a template as --prompt.",
    ),
    _input("--limit", type=int, metavar="N", help="Read only the first N rows.  [default: all]"),
)

MEDIA = (
    _media(
        "--image",
        multiple=True,
        metavar="COLUMN",
        help="Put the image in this column before the row's text: a path, a URL, its bytes, or a"
        " list of these; null is none. Repeatable.",
    ),
    _media(
        "--video",
        multiple=True,
        metavar="COLUMN",
        help="The same for a column with videos. Repeatable.",
    ),
    _media(
        "--media-root",
        metavar="DIR",
        help="Folder of the files that rows name; none outside of it is read."
        "  [default: the input's own folder; for - the current one]",
    ),
    _media(
        "--allow-private-hosts",
        is_flag=True,
        help="Fetch from addresses that are not public too, as 127.0.0.1 or 10.0.0.7. Only for"
        " inputs that you trust.",
    ),
    _media(
        "--video-fps",
        type=float,
        metavar="N",
        default=Flags.video_fps,
        show_default=True,
        help="Frames shown to the model for each second of a video, 4 to 128 in all.",
    ),
)

OUTPUT = (
    _output(
        "-o",
        "--output",
        metavar="FILE",
        help="Where the answers go, when all rows are done: a file, or with / at its end a folder"
        " that gets one with the new rows each time.  [required]",
    ),
    _output(
        "--format",
        type=click.Choice(FORMATS),
        help="Form of the output.  [default: as its name ends]",
    ),
    _output(
        "--removed",
        type=click.Choice(REMOVED),
        help="In a folder: keep or drop rows that the input no longer has.  [default: keep]",
    ),
    _output(
        "--keep",
        multiple=True,
        metavar="COLUMN",
        help="Carry this input column over to the output. Repeatable.",
    ),
    _output(
        "--keep-all",
        is_flag=True,
        help="Carry every input column over to the output, but for those of --image and --video.",
    ),
    _output(
        "--explode",
        is_flag=True,
        help="Give each field of the answers' --json-schema a column of its own, in Parquet.",
    ),
    _output(
        "--fresh",
        is_flag=True,
        help="Start over: reuse no answer of an earlier run with this output.",
    ),
)

EVALUATION = (
    _evaluation(
        "--expected",
        metavar="COLUMN",
        help="Compare answers with this input column, and report how many are right.",
    ),
    _evaluation(
        "--metric",
        type=click.Choice(METRIC_NAMES),
        help="How: exact text; numeric, the last number; contains; regex; json; choice, the value"
        " of the column that the answer names first.  [default: exact]",
    ),
)

MODEL = (
    _model(
        "--model",
        metavar="NAME",
        help="A folder with an MLX model, or a name on the Hugging Face Hub."
        "  [default: SmolLM2-135M-Instruct, a small model for trying things out]",
    ),
    _model("--adapter", metavar="DIR", help="Folder with a LoRA adapter for the model."),
    _model(
        "--dtype",
        type=click.Choice(DTYPES),
        help="Type of the weights.  [default: float32 on a CPU, else the model's own]",
    ),
    _model(
        "--max-model-len",
        type=int,
        metavar="N",
        help="Most tokens of a prompt and its answer together.  [default: the model's own]",
    ),
    _model(
        "--chat-template",
        metavar="FILE",
        help="Chat template: a file, or the Jinja text itself.  [default: the model's own]",
    ),
    _model(
        "--text-only",
        is_flag=True,
        help="Of a model for images and text, load only the part for text.",
    ),
    _model(
        "--tool-parser",
        metavar="NAME",
        help="Which of mlx-lm's parsers reads tool calls, or none."
        "  [default: as the tokenizer says]",
    ),
    _model(
        "--reasoning-parser",
        metavar="TAG",
        help="Reasoning stands between <TAG> and </TAG>; none reads it as text."
        "  [default: as the tokenizer says]",
    ),
    _model(
        "--trust-remote-code",
        is_flag=True,
        help="Run code that comes with the model. Only for models that you trust.",
    ),
)

ANSWERS = (
    _answers(
        "--max-tokens",
        type=int,
        metavar="N",
        default=Flags.max_tokens,
        show_default=True,
        help="Most tokens of an answer; one cut off there has finish_reason length.",
    ),
    _answers(
        "--temperature",
        type=float,
        metavar="T",
        default=Flags.temperature,
        show_default=True,
        help="0 always takes the likeliest token, so that labels and evaluations repeat.",
    ),
    _answers(
        "--top-p",
        type=float,
        metavar="P",
        default=Flags.top_p,
        show_default=True,
        help="Draw from the likeliest tokens that make up this probability; 1 is off.",
    ),
    _answers(
        "--top-k",
        type=int,
        metavar="K",
        default=Flags.top_k,
        show_default=True,
        help="Draw from the K likeliest tokens; 0 is off.",
    ),
    _answers(
        "--min-p",
        type=float,
        metavar="P",
        default=Flags.min_p,
        show_default=True,
        help="Leave out tokens less likely than P times the likeliest; 0 is off.",
    ),
    _answers(
        "--stop",
        multiple=True,
        metavar="TEXT",
        help="End an answer before this text. Repeatable.",
    ),
    _answers(
        "--choices",
        metavar="A,B,...",
        help="Answers are one of these texts; choice_probs has the probability of each.",
    ),
    _answers(
        "--label",
        is_flag=True,
        help="Write no answers: take the likeliest of --choices, which is quicker.",
    ),
    _answers(
        "--json-schema",
        metavar="FILE",
        help="Answers are JSON after the schema in this file, also in the column parsed.",
    ),
    _answers("--regex", metavar="REGEX", help="Answers match this regular expression."),
    _answers(
        "--reasoning-budget",
        type=int,
        metavar="N",
        help="Close a block of reasoning after N tokens.  [default: no limit]",
    ),
    _answers(
        "--seed",
        type=int,
        metavar="N",
        help="Draw other answers at temperatures above 0; the same seed repeats them.",
    ),
)

_WINDOW = _speed(
    "--window",
    type=int,
    metavar="N",
    default=Flags.window,
    show_default=True,
    help="Rows planned together, so that those with a shared prefix run together.",
)

PREFIX_CACHE_DIR = _speed(
    "--prefix-cache-dir",
    metavar="DIR",
    help="Where prefixes that prompts share are kept for later runs."
    "  [default: ~/.cache/batchrun/prefixes]",
)
PREFIX_CACHE_SIZE = _speed(
    "--prefix-cache-size",
    metavar="SIZE",
    default=Flags.prefix_cache_size,
    show_default=True,
    help="Most that they take there, all models together: as 500MB or 10GB; 0 is off.",
)

SPEED = (
    _speed(
        "--max-num-seqs",
        type=str,
        metavar="N|auto",
        default=Flags.max_num_seqs,
        show_default=True,
        help="Most answers generated at once; auto finds out how many are fastest.",
    ),
    _speed(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        default=Flags.max_num_batched_tokens,
        show_default=True,
        help="Most prompt tokens computed in one turn.",
    ),
    _speed(
        "--kv-bits",
        type=click.Choice(KV_BITS),
        help="Keep attention's keys and values in so many bits: less memory, answers differ a"
        " little.  [default: full precision]",
    ),
    _WINDOW,
    PREFIX_CACHE_DIR,
    PREFIX_CACHE_SIZE,
    _speed("--no-prefix-cache", is_flag=True, help="Neither use nor keep prefixes on disk."),
)

RUN = (
    _run(
        "--model-map",
        multiple=True,
        metavar="NAME=MODEL",
        help="Run rows that name this model on that one, a model at a time. Repeatable; other rows"
        " run on --model.",
    ),
    _run(
        "--fail-on-error",
        is_flag=False,
        flag_value="1",
        metavar="[N]",
        help="Stop as failed after N failed rows, or a share of all rows below 1; alone, after"
        " the first.  [default: never]",
    ),
    _run(
        "--max-time",
        metavar="TIME",
        help="Stop after this time, to be continued: seconds, or as 90s, 15m, 2h."
        "  [default: no limit]",
    ),
    _run(
        "--grace",
        metavar="TIME",
        default=f"{Flags.grace:g}s",
        show_default=True,
        help="How long running answers may still take when the run is stopped.",
    ),
    _run(
        "--quiet",
        is_flag=True,
        help="Show no progress, and no summary of a run in which every row was answered.",
    ),
    _run("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON."),
    _run("--wait", is_flag=True, help="Wait while another run holds the output."),
    _run(
        "--nice",
        type=int,
        is_flag=False,
        flag_value=10,
        default=Flags.nice,
        metavar="[N]",
        help="Leave the processor to others: 1 to 19, alone 10.  [default: 0]",
    ),
    _run("--allow-sleep", is_flag=True, help="Do not keep the machine awake meanwhile."),
    _run(
        "--log-file",
        metavar="FILE",
        help="Also append what is said to this file, which is kept small.",
    ),
)

CHECK = (
    _WINDOW,
    _run(
        "--plan",
        "with_plan",
        is_flag=True,
        help="Also forecast what a run would compute, and what shared prefixes save.",
    ),
    _run("--json", "as_json", is_flag=True, help="Print each fault as one line of JSON."),
)
