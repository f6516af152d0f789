"""What to read, where answers go, and what they are compared with."""

from __future__ import annotations

import click

from batchrun.evaluation.judge import METRIC_NAMES
from batchrun.flags import Flags
from batchrun.options.groups import group
from batchrun.values import FORMATS, REMOVED

_input = group("Input")
_media = group("Images and video")
_output = group("Output")
_evaluation = group("Evaluation")

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
    _input(
        "--shard",
        metavar="I/N",
        help="Of these, answer only every N-th row from the I-th on; batchrun merge joins the"
        " outputs of all N.",
    ),
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
        help="Folder or s3:// URL of the files that rows name; none outside of it is read."
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
        help="Where the answers go, when all rows are done: a file or its URL, or with / at its end"
        " a folder that gets one with the new rows each time.  [required]",
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
