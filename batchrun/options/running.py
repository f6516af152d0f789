"""How a run behaves, and a check."""

from __future__ import annotations

from batchrun.flags import Flags
from batchrun.options.groups import group

_cluster = group("Many workers")
_run = group("Run")

CLUSTER = (
    _cluster(
        "--ray",
        is_flag=False,
        flag_value="local",
        metavar="[ADDRESS]",
        help="Run on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT; alone, on one that is"
        " started on this machine for the run.",
    ),
    _cluster(
        "--workers",
        type=int,
        metavar="N",
        help="Workers with a model each; those of a machine share its cores."
        "  [default: one for each GPU, or machine without]",
    ),
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

JSON = _run("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")

CHECK = (
    _run(
        "--plan",
        "with_plan",
        is_flag=True,
        help="Also forecast what a run would compute, and what shared prefixes save.",
    ),
    _run("--json", "as_json", is_flag=True, help="Print each fault as one line of JSON."),
)
