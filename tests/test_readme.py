"""README, CHANGELOG and --help say what is so: their commands run, their lists are whole."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import click
import pytest

from batchrun import device
from batchrun.cli import main
from batchrun.flags import Flags
from batchrun.models import default
from tests.command import ROOT
from tests.examples import Example, blocks, script, session

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FIRST_SCREEN = README.partition("\n## ")[0]

EXTRAS = {"cpu", "cuda12", "cuda13", "eval", "gcs", "ray", "s3"}

# The only examples that are there to show a fault.
FAULTY = {'batchrun check samples/reviews.csv --prompt "{{ text }}" --limit 1': 3}
# A name on the Hub, in whose place a tiny model runs: tests use no network.
HUB_MODEL = re.compile(r"--model (?!samples/)[\w-]+/[\w.-]+")


def examples() -> list[Example]:
    sessions = [example for text in blocks(README, "console") for example in session(text)]
    return sessions + [example for text in blocks(README, "bash") for example in script(text)]


def batchrun_examples() -> list[Example]:
    return [example for example in examples() if example.command.startswith("batchrun ")]


def commands(command: click.Command = main) -> list[click.Command]:
    """It and all below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return [command, *(each for under in below for each in commands(under))]


def flags(command: click.Command) -> set[str]:
    params = command.get_params(click.Context(command))
    return {name for param in params if isinstance(param, click.Option) for name in param.opts}


def run(command: str) -> int:
    """Its exit status, run in this process."""
    program, *args = shlex.split(command.replace("\\\n", " "), comments=True)
    assert program == "batchrun"
    with pytest.raises(SystemExit) as ended:
        main(args, prog_name=program)
    return int(ended.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with copies of what the examples read."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    shutil.copy(ROOT / "samples" / "questions.jsonl", tmp_path / "input.jsonl")
    return tmp_path


@pytest.fixture
def tiny_default(
    folder: Path, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A tiny model in the place of the default one."""
    path = tiny_model("llama")
    monkeypatch.setattr(default, "folder", lambda say: path)
    return path


# ---------------------------------------------------------------- what it says to run


def test_the_commands_of_the_readme_run(
    tiny_default: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = batchrun_examples()

    assert set(FAULTY) < {example.command for example in found}
    for example in found:
        command = HUB_MODEL.sub(f"--model {shlex.quote(str(tiny_default))}", example.command)
        assert run(command) == FAULTY.get(example.command, 0), (command, capfd.readouterr().err)


def test_commands_are_run_or_known_not_to_be() -> None:
    others = {example.command.split()[0] for example in examples()} - {"batchrun"}

    # `make demo`, completion and mlx.launch have tests of their own; the others set up or run all
    # tests.
    assert others == {"make", "pip", "eval", "mlx.launch"}


def test_the_examples_of_every_help_run(
    tiny_default: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    epilogs = [(command.epilog or "").partition("Examples:\n")[2] for command in commands()]
    found = [example for epilog in epilogs for example in script(dedent(epilog))]

    assert len(found) >= 3
    for example in found:
        assert run(example.command) == 0, (example.command, capfd.readouterr().err)


def test_the_forms_of_rows_are_read(tiny_default: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (forms,) = blocks(README, "jsonl")
    Path("forms.jsonl").write_text(forms)

    assert run("batchrun check forms.jsonl") == 0, capfd.readouterr().out
    assert run("batchrun forms.jsonl -o forms.parquet --max-tokens 4") == 0


@pytest.mark.parametrize("code", blocks(README, "python"))
def test_the_python_examples_run(
    code: str, tiny_default: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "example"})

    assert capsys.readouterr().out.strip()


# ---------------------------------------------------------------- what it lists


def test_the_tree_names_the_rooms_that_exist() -> None:
    (tree,) = (text for text in blocks(README, "text") if text.startswith("batchrun/\n"))
    named = re.findall(r"^  (\S+) +\S", tree, re.MULTILINE)
    there = [path for path in (ROOT / "batchrun").iterdir() if not path.name.startswith("_")]

    assert sorted(named) == sorted(
        f"{path.name}/" if path.is_dir() else path.name for path in there
    )
    assert tree.count("\n") == len(named) + 1


def test_every_flag_that_it_names_exists() -> None:
    others = {"--tasks", "--head", "--address", "--hostfile"}  # the harness's, Ray's, mlx.launch's
    known = others.union(*map(flags, commands()))

    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) <= known


@pytest.mark.parametrize("command", commands(), ids=lambda command: str(command.name))
def test_every_flag_is_in_the_help(command: click.Command) -> None:
    text = command.get_help(click.Context(command, info_name="batchrun"))

    assert flags(command) <= set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


def test_the_defaults_that_it_names_are_so() -> None:
    assert f"`--max-num-seqs` ({Flags.max_num_seqs})" in README
    assert f"`--max-num-batched-tokens` ({Flags.max_num_batched_tokens})" in README
    assert f"`--grace` ({Flags.grace:g} s)" in README
    assert f"{Flags.window:,} rows at a time (`--window`)" in README
    assert f"default temperature is {Flags.temperature:g}" in README


def test_it_names_every_column_of_the_output() -> None:
    from batchrun.sink.parquet import COLUMNS

    assert [name for name in COLUMNS.names if f"`{name}`" not in README] == []


def test_it_names_the_exit_statuses_of_the_help() -> None:
    def statuses(text: str) -> list[str]:
        return re.findall(r"\d+", text.partition("Exit status:")[2].partition("\n\n")[0])

    assert statuses(README) == statuses(str(main.commands["run"].help)) != []


def test_make_has_the_targets_that_it_names() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    named = set(re.findall(r"(?:`|\$ )make (\w+)", README))
    assert {"demo", "test", "check"} <= named <= set(targets)


def test_the_extras_that_it_names_exist() -> None:
    assert set(re.findall(r'"\.\[(\w+)\]"', README)) == EXTRAS
    assert PYPROJECT["optional-dependencies"].keys() >= EXTRAS


def test_the_files_that_it_names_exist() -> None:
    named = set(re.findall(r"(?:samples|benchmarks|jobs)/[\w./-]*\w", README))

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d\S*)", changelog, re.MULTILINE)

    assert versions[0] == PYPROJECT["version"]


# ---------------------------------------------------------------- what it shows


def comparable(line: str) -> str:
    """A line of output without the figures that depend on the machine."""
    if line.startswith("device"):
        line = line.partition(";")[0]
    if line.startswith((" " * 10, "batch", "device")):
        line = " ".join(re.sub(r"\d[\d.,]*", "#", line).split())
    return line.rstrip()


def missing(shown: tuple[str, ...], printed: str) -> list[str]:
    """What of `shown` does not come in `printed`, in its order; more may stand in between."""
    lines = iter([comparable(line) for line in printed.splitlines()])
    return [line for line in shown if comparable(line) not in lines]


def shim(path: Path, *arguments: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *arguments])} "$@"\n')
    path.chmod(0o755)


@pytest.mark.real_model
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.skipif(device.prepare().kind != "cpu", reason="the answers shown are a CPU's")
def test_make_demo_prints_what_the_first_screen_shows(folder: Path) -> None:
    """The real target and model; the tests' own Python stands for what it would set up."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    shim(programs / "batchrun", "-m", "batchrun")
    shim(programs / "python")
    (folder / ".venv" / ".installed").touch()
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    done = subprocess.run(
        ["make", "demo"],
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,  # far beyond what it takes
    )

    (demo,) = (each for each in session(FIRST_SCREEN) if each.command == "make demo")
    assert done.returncode == 0, done.stdout
    assert len(demo.shown) > 20
    assert missing(demo.shown, done.stdout) == [], done.stdout


@pytest.mark.usefixtures("folder")
def test_the_evaluation_scores_what_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    (example,) = (each for each in batchrun_examples() if "scored.parquet" in each.command)
    shown = tuple(line for line in example.shown if line != "...")
    run(example.command)

    assert len(shown) == 2
    assert missing(shown, capfd.readouterr().err) == []


@pytest.mark.real_model
@pytest.mark.usefixtures("folder")
def test_check_prints_what_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """No weights, but the default model's tokenizer."""
    found = [each for each in batchrun_examples() if each.command.startswith("batchrun check ")]

    assert len(found) >= 2
    for example in found:
        run(example.command)
        assert "".join(capfd.readouterr()).splitlines() == list(example.shown)
