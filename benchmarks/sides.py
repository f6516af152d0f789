"""The two sides of a comparison, each in a process of its own: the command `batchrun`, and a peer
library in a script that answers the same file. Knows nothing of workloads, nor of what is compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from batchrun.config import ModelConfig
from batchrun.models import locate

HERE = Path(__file__).parent
GB = 1e9

Line = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """A process that has answered its rows: what it printed, the answers it wrote, when it was
    started (seconds since the epoch) and how many seconds it took from there to its end."""

    report: dict[str, Any]
    lines: list[Line]
    started_at: float
    seconds: float

    @property
    def answers(self) -> dict[str, str]:
        """Texts by custom_id."""
        return {line["custom_id"]: _text(line) for line in self.lines}


def write_rows(path: Path, rows: list[Line]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run_batchrun(rows: Path, output: Path, model: str | None, *flags: object) -> Ended:
    """Answer the file `rows` into the JSONL `output`. `model` None is batchrun's default model."""
    chosen = ["--model", model] if model else []
    command = ["-m", "batchrun", rows, "--output", output, "--json", "--quiet", *chosen, *flags]
    return _python(command, output)


def run_peer(
    script: str, rows: Path, answers: Path, model: str | None, *flags: object, **environment: str
) -> Ended:
    """The same by a script of this folder."""
    folder = locate(ModelConfig(model=model), click.echo).path
    return _python([HERE / script, folder, rows, answers, *flags], answers, **environment)


def batchrun_figures(ended: Ended, rows: int) -> dict[str, float]:
    """Rows a second, without loading the model and of the whole process; GB at the peak."""
    report = ended.report
    return {
        "rows": rows / (report["elapsed_time"] - report["elapsed"]["load"]),
        "rows_whole_process": rows / ended.seconds,
        "memory_process": report["peak_process_memory"],
        "memory_arrays": report["peak_memory"],
    }


def peer_figures(ended: Ended, rows: int) -> dict[str, float]:
    """The same of a peer, whose own clock starts when its model is loaded."""
    report = ended.report
    return {
        "rows": rows / report["seconds"],
        "rows_whole_process": rows / ended.seconds,
        "memory_process": report["process_bytes"] / GB,
        "memory_arrays": report["array_bytes"] / GB,
    }


def _python(command: list[object], written: Path, **environment: str) -> Ended:
    started_at, start = time.time(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=True,
    )
    seconds = time.perf_counter() - start
    lines = written.read_text(encoding="utf-8").splitlines()
    printed = done.stdout.splitlines()[-1]  # after what libraries have to say
    return Ended(json.loads(printed), list(map(json.loads, lines)), started_at, seconds)


def _text(line: Line) -> str:
    """Of a peer's line, or of OpenAI's form, which batchrun writes."""
    if "text" in line:
        return str(line["text"])
    return str(line["response"]["body"]["choices"][0]["message"]["content"])
