"""The model, and how it answers."""

from __future__ import annotations

import click

from batchrun.flags import Flags
from batchrun.options.groups import group
from batchrun.values import DTYPES

_model = group("Model")
_answers = group("Answers (a row's own values win)")

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
