"""The command itself, with the run replaced by a fake: what it is asked, prints and exits with."""

from __future__ import annotations

import json
import os
import pkgutil
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner, Result
from PIL import Image

import batchrun
from batchrun.cli import check, main
from batchrun.cli import run as run_command
from batchrun.config import RunConfig
from batchrun.errors import ModelError, OutputBusy, RunError
from batchrun.flags import Flags
from batchrun.report.summary import Summary
from batchrun.run_cli import EXAMPLES
from tests.report import figures

ROWS = (
    '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", '
    '"body": {"messages": [{"role": "user", "content": "hello"}]}}\n'
)
BAD_ROWS = (
    ROWS
    + '{"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", '
    + '"body": {"messages": [{"role": "user", "content": "hello"}], "stream": true}}\n{\n'
)
HEAVY = ("mlx", "mlx_lm", "transformers", "pyarrow", "numpy", "PIL", "huggingface_hub")


class FakeRun:
    """Stands for the run: remembers its configuration, returns a summary or raises."""

    def __init__(self) -> None:
        self.config: RunConfig | None = None
        self.summary: Summary = figures.summary(figures.meter(completed=1))
        self.error: BaseException | None = None

    def execute(self, config: RunConfig) -> Summary:
        self.config = config
        if self.error is not None:
            raise self.error
        return self.summary


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    fake = FakeRun()
    module = ModuleType("batchrun.runner")
    module.execute = fake.execute  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batchrun.runner", module)
    return fake


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An input and a bad one, in the current folder; no model in the cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "in.jsonl").write_text(ROWS)
    (tmp_path / "bad.jsonl").write_text(BAD_ROWS)
    return tmp_path


def invoke(command: str) -> Result:
    """Runs a line as typed in a shell."""
    program, *args = shlex.split(command)
    assert program == "batchrun"
    return CliRunner().invoke(main, args, prog_name=program)


def flags_of(command: click.Command) -> set[str]:
    return {
        name
        for param in command.params
        if isinstance(param, click.Option)
        for name in param.opts
        if name.startswith("--")
    }


# ---------------------------------------------------------------- run


def test_the_summary_goes_to_stderr_and_stdout_stays_empty(fake: FakeRun) -> None:
    result = invoke("batchrun in.jsonl -o out.parquet")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.startswith("1 of 1 row answered\n")


@pytest.mark.parametrize(
    "command",
    [
        "batchrun in.jsonl -o out.parquet --limit 3",
        "batchrun run in.jsonl -o out.parquet --limit 3",
        "batchrun -o out.parquet --limit 3 in.jsonl",
        "batchrun --limit 3 -i in.jsonl -o out.parquet",
        "batchrun -i in.jsonl --output=out.parquet --limit=3",
    ],
)
def test_run_is_the_default_command_wherever_the_flags_are(fake: FakeRun, command: str) -> None:
    assert invoke(command).exit_code == 0
    assert fake.config is not None
    assert fake.config.source.inputs == ("in.jsonl",)
    assert fake.config.output == Path("out.parquet")
    assert fake.config.source.limit == 3


def test_inputs_come_in_the_order_given_with_i_ones_last(fake: FakeRun) -> None:
    invoke("batchrun -i in.jsonl bad.jsonl '*.jsonl' -o out.parquet")

    assert fake.config is not None
    assert fake.config.source.inputs == ("bad.jsonl", "bad.jsonl", "in.jsonl", "in.jsonl")


def test_flags_reach_the_run(fake: FakeRun) -> None:
    result = invoke(
        "batchrun in.jsonl -o out.jsonl --stop '###' --stop END --keep a --keep b --max-tokens 9 "
        "--temperature 0.7 --max-time 15m --grace 1 --quiet --fresh --model m --max-num-seqs 2"
    )
    assert result.exit_code == 0
    config = fake.config
    assert config is not None
    assert config.source.sampling.stop == ("###", "END")
    assert config.source.sampling.max_tokens == 9
    assert config.source.sampling.temperature == 0.7
    assert config.source.keep == ("a", "b")
    assert (config.max_time, config.grace) == (900, 1)
    assert (config.quiet, config.fresh, config.model.model) == (True, True, "m")
    assert config.max_num_seqs == 2


@pytest.mark.parametrize(
    ("flag", "limit"),
    [
        ("", None),
        ("--fail-on-error", 1),
        ("--fail-on-error 5", 5),
        ("--fail-on-error=0.1", 0.1),
    ],
)
def test_fail_on_error_is_a_flag_or_takes_a_value(
    fake: FakeRun, flag: str, limit: float | None
) -> None:
    assert invoke(f"batchrun in.jsonl -o out.parquet {flag}").exit_code == 0
    assert fake.config is not None
    assert fake.config.fail_on_error == limit


@pytest.mark.parametrize(("given", "most"), [("auto", None), ("7", 7)])
def test_max_num_seqs_is_a_number_or_auto(fake: FakeRun, given: str, most: int | None) -> None:
    assert invoke(f"batchrun in.jsonl -o out.parquet --max-num-seqs {given}").exit_code == 0
    assert fake.config.max_num_seqs == most


def test_failed_rows_show_in_the_exit_status_and_the_first_line(fake: FakeRun) -> None:
    fake.summary = figures.summary(figures.meter(completed=10, errors={"a": "1", "b": "2"}))
    result = invoke("batchrun in.jsonl -o out.parquet")

    assert result.exit_code == 3
    assert result.stderr.startswith("10 of 12 rows answered, 2 FAILED\n")


def test_a_stopped_run_exits_with_4(fake: FakeRun) -> None:
    fake.summary = figures.summary(figures.meter(completed=1, total=9), outcome="stopped")

    assert invoke("batchrun in.jsonl -o out.parquet").exit_code == 4


def test_json_is_the_report_on_one_line(fake: FakeRun) -> None:
    fake.summary = figures.summary(figures.meter(completed=1, errors={"a": "grüße"}))
    result = invoke("batchrun in.jsonl -o out.parquet --json")

    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout) == fake.summary.to_dict()
    assert result.stderr == ""
    assert result.exit_code == 3


def test_quiet_says_nothing_unless_rows_failed(fake: FakeRun) -> None:
    assert invoke("batchrun in.jsonl -o out.parquet --quiet").output == ""

    fake.summary = figures.summary(figures.meter(errors={"a": "1"}))
    result = invoke("batchrun in.jsonl -o out.parquet --quiet")
    assert result.stderr.startswith("0 of 1 row answered, 1 FAILED\n")


def test_a_run_whose_summary_nobody_can_read_has_its_own_exit_status(
    folder: Path, tiny_model: Callable[..., Path]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "batchrun", "bad.jsonl", "-o", "out.jsonl", "--model"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    ended = subprocess.run([*command, tiny_model("llama")], stderr=writer, env=environment)
    os.close(writer)

    assert ended.returncode == 3
    assert (folder / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("error", "exit_status", "line"),
    [
        (RunError("the disk is full"), 1, "Error: the disk is full\n"),
        (ModelError("no such\nmodel"), 1, "Error: no such model\n"),
        (OutputBusy("another run holds it"), 75, "Error: another run holds it\n"),
        (KeyboardInterrupt(), 130, "Error: interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(
    fake: FakeRun, error: BaseException, exit_status: int, line: str
) -> None:
    fake.error = error
    result = invoke("batchrun in.jsonl -o out.parquet")

    assert (result.exit_code, result.stderr, result.stdout) == (exit_status, line, "")


def test_an_unexpected_exception_is_not_hidden(fake: FakeRun) -> None:
    fake.error = ZeroDivisionError()

    assert isinstance(invoke("batchrun in.jsonl -o out.parquet").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("batchrun in.jsonl", "no output: say where the answers go, as in -o answers.parquet"),
        ("batchrun -o out.parquet", "no input: name a file, a quoted glob, or - for standard"),
        ("batchrun gone.jsonl -o out.parquet", "gone.jsonl: no such file"),
        ("batchrun in.jsonl -o out.parquet --quiett", "'--quiet'?"),
        ("batchrun in.jsonl -o out.parquet --max-token 4", "'--max-tokens'"),
        ("batchrun in.jsonl -o out.parquet --limit many", "'--limit': 'many' is not a valid"),
        ("batchrun in.jsonl -o out.parquet --dtype int4", "'float32', 'float16', 'bfloat16'"),
        ("batchrun in.jsonl -o out.parquet --top-p 2", "--top-p must be a number above 0 and"),
        ("batchrun in.jsonl -o in.jsonl", "in.jsonl: is an input, and this run would replace"),
        ("batchrun in.jsonl -o .", "is no part of an output; name a file in it"),
        ("batchrun in.jsonl -o gone/out.parquet", "mkdir -p gone"),
        ("batchrun in.jsonl -o", "requires an argument"),
        ("batchrun check", "no input: name a file"),
        ("batchrun check gone.jsonl", "gone.jsonl: no such file"),
        ("batchrun check in.jsonl --plan", "run one row first (--limit 1), which fetches it"),
    ],
)
def test_a_wrong_flag_or_path_gets_one_line_that_says_what_to_do(
    fake: FakeRun, command: str, hint: str
) -> None:
    result = invoke(command)

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert hint in result.stderr
    assert result.stdout == ""
    assert fake.config is None


# ---------------------------------------------------------------- the environment


@pytest.mark.parametrize(
    ("variable", "value", "flag", "found"),
    [
        ("BATCHRUN_MAX_TOKENS", "64", "--max-tokens 64", lambda c: c.source.sampling.max_tokens),
        ("BATCHRUN_FRESH", "1", "--fresh", lambda c: c.fresh),
        ("BATCHRUN_FRESH", "no", "", lambda c: c.fresh),
        ("BATCHRUN_KEEP", "a b", "--keep a --keep b", lambda c: c.source.keep),
        ("BATCHRUN_NICE", "5", "--nice 5", lambda c: c.manners.nice),
        ("BATCHRUN_FAIL_ON_ERROR", "0.5", "--fail-on-error 0.5", lambda c: c.fail_on_error),
        ("BATCHRUN_MODEL", "", "", lambda c: c.model.model),
        ("BATCHRUN_BLAS", "off", "", lambda c: c),
    ],
)
def test_a_flag_can_come_from_the_environment(
    fake: FakeRun,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    flag: str,
    found: Callable[[RunConfig | None], object],
) -> None:
    assert invoke(f"batchrun in.jsonl -o out.parquet {flag}").exit_code == 0
    given = found(fake.config)
    monkeypatch.setenv(variable, value)

    assert invoke("batchrun in.jsonl -o out.parquet").exit_code == 0
    assert found(fake.config) == given


def test_inputs_and_output_too_and_what_is_typed_goes_before(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"INPUT": "in.jsonl", "OUTPUT": "out.parquet", "JSON": "true", "TEMPERATURE": "0.5"}
    for name, value in names.items():
        monkeypatch.setenv(f"BATCHRUN_{name}", value)
    done = invoke("batchrun --temperature 0.25")

    assert json.loads(done.stdout)
    assert fake.config is not None
    assert (fake.config.source.inputs, fake.config.output) == (("in.jsonl",), Path("out.parquet"))
    assert fake.config.source.sampling.temperature == 0.25


@pytest.mark.parametrize("command", ["batchrun in.jsonl -o x.parquet", "batchrun check in.jsonl"])
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BATCHRUN_LIMIT", "many"),
        ("BATCHRUN_TOP_P", "2"),
        ("BATCHRUN_DTYPE", "int4"),
        ("BATCHRUN_FRESH", "perhaps"),
        ("BATCHRUN_GRACE", "soon"),
        ("BATCHRUN_EXPLODE", "1"),
    ],
)
def test_a_wrong_value_from_the_environment_names_the_variable(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch, command: str, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    done = invoke(command)

    assert (done.exit_code, done.stderr.count("\n"), fake.config) == (2, 1, None)
    assert variable in done.stderr


def test_errors_about_flags_that_were_typed_name_no_variable(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHRUN_TOP_K", "3")
    monkeypatch.setenv("BATCHRUN_MIN_P", "0.5")
    done = invoke("batchrun in.jsonl -o x.parquet --top-p 2")

    assert "--top-p must be" in done.stderr
    assert "BATCHRUN" not in done.stderr


# ---------------------------------------------------------------- check


def test_check_prints_a_line_for_each_fault_and_a_count() -> None:
    result = invoke("batchrun check bad.jsonl")

    assert result.exit_code == 3
    first, second = result.stdout.splitlines()
    assert first == (
        "bad.jsonl:2 b streaming_unsupported body.stream must be false: answers go to a file"
    )
    assert second.startswith("bad.jsonl:3 - invalid_json_line ")
    assert result.stderr == (
        "Faulty rows: 2 of 3. Checked: form and fields; "
        "not images or prompt length, as the model is not on this machine yet.\n"
    )


def test_check_of_a_good_file() -> None:
    result = invoke("batchrun check in.jsonl")

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("Faulty rows: 0 of 1. ")


def test_check_prints_validation_records_with_json() -> None:
    result = invoke("batchrun check bad.jsonl --json")

    first, second = map(json.loads, result.stdout.splitlines())
    assert first == {
        "code": "streaming_unsupported",
        "line": 2,
        "message": "body.stream must be false: answers go to a file",
        "param": "body.stream",
        "file": "bad.jsonl",
        "custom_id": "b",
    }
    assert (second["code"], second["line"], second["custom_id"]) == ("invalid_json_line", 3, None)


def test_check_fills_templates(folder: Path) -> None:
    (folder / "data.csv").write_text("text\nhello\n")

    assert invoke("batchrun check data.csv --prompt '{{ text }}'").exit_code == 0
    result = invoke("batchrun check data.csv --prompt '{{ word }}'")
    assert result.exit_code == 3
    assert result.stdout.startswith("data.csv:2 - missing_column ")


def test_check_measures_prompts_with_a_model_that_is_here(
    tiny_model: Callable[..., Path],
) -> None:
    folder = tiny_model("llama", max_position_embeddings=8)
    result = invoke(f"batchrun check in.jsonl --model {folder}")

    assert result.exit_code == 3
    assert result.stdout.startswith("in.jsonl:1 a context_length_exceeded ")
    assert result.stderr == (
        "Faulty rows: 1 of 1. Checked: form, fields, chat template and prompt length.\n"
    )


def test_check_forecasts_the_plan(folder: Path, tiny_model: Callable[..., Path]) -> None:
    rows = [{"prompt": [3] * 50 + [4, row % 9, 5], "max_tokens": 1} for row in range(10)]
    lines = [*map(json.dumps, rows), "{"]
    (folder / "shared.jsonl").write_text("\n".join(lines))
    result = invoke(f"batchrun check shared.jsonl --plan --model {tiny_model('llama')}")

    fault, title, *figures = result.stdout.splitlines()
    assert result.exit_code == 3
    assert fault.startswith("shared.jsonl:11 - invalid_json_line ")
    assert title.startswith("Plan of a run")
    assert [line.split()[:3] for line in figures[:5]] == [
        ["rows", "10"],
        ["prompt", "tokens", "530"],
        ["computed", "69", "13.0"],
        ["shared", "408", "77.0"],
        ["repeated", "53", "10.0"],
    ]
    assert figures[6].split()[:3] == ["408", "9", "51"]
    assert result.stderr.startswith("Faulty rows: 1 of 11.")


def test_check_forecasts_the_plan_of_questions_on_one_image(folder: Path) -> None:
    Image.new("RGB", (280, 280), "teal").save(folder / "large.png")
    image = {"type": "image_url", "image_url": {"url": "large.png"}}
    shapes = ("circle", "square", "triangle", "star", "cross", "ring")
    questions = [{"type": "text", "text": f"Is there a {shape}?"} for shape in shapes]
    rows = [{"messages": [{"role": "user", "content": [image, asked]}]} for asked in questions]
    (folder / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = Path(__file__).parent.parent / "samples" / "shapes-vlm"

    result = invoke(f"batchrun check asked.jsonl --plan --model {model}")

    assert result.exit_code == 0
    assert "[media]" in result.stdout


def test_check_forecasts_the_plan_of_the_window_asked_for(
    folder: Path, tiny_model: Callable[..., Path]
) -> None:
    rows = [{"prompt": [3] * 50 + [4, row], "max_tokens": 1} for row in range(10)]
    (folder / "shared.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = f"batchrun check shared.jsonl --plan --json --model {tiny_model('llama')}"

    whole, halves = (
        json.loads(invoke(f"{command} --window {window}").stdout)["plan"] for window in (10, 5)
    )
    assert (whole["computed_tokens"], halves["computed_tokens"]) == (51 + 10, 2 * 51 + 10)
    assert invoke(f"{command} --window 0").exit_code == 2


def test_check_takes_what_a_run_takes_and_writes_nothing(folder: Path) -> None:
    run_flags = "-o out.parquet --max-num-seqs 4 --fresh --nice --kv-bits 8 --max-time 1h --wait"

    assert invoke(f"batchrun check in.jsonl {run_flags}").exit_code == 0
    assert list(folder.glob("out*")) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--max-tokens -1", "--max-tokens must be"),
        ("--max-num-seqs none", "--max-num-seqs must be"),
        ("--regex '('", "--regex"),
        ("--label", "--label needs --choices"),
        ("--metric exact", "--metric needs --expected"),
        ("-o out.txt", "cannot tell the format of the output out.txt"),
        ("-o gone/out.parquet", "mkdir -p gone"),
        ("-o in.jsonl", "is an input"),
        ("--plan --model-map a=b", "--plan is for one model"),
    ],
)
def test_check_finds_what_a_run_would_not_start_with(flags: str, message: str) -> None:
    done = invoke(f"batchrun check in.jsonl {flags}")

    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


def test_check_finds_what_the_flags_make_of_rows(
    folder: Path, tiny_model: Callable[..., Path]
) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b", "prompt_logprobs": 1}, {"prompt": [900]}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = invoke(
        f"batchrun check rows.jsonl --choices x,y --expected label --model {tiny_model('llama')}"
    )

    codes = [line.split()[2] for line in done.stdout.splitlines()]
    assert codes == ["unsupported_parameter", "invalid_token_id"]
    assert "Rows that are not scored, with nothing in --expected label: 1.\n" in done.stderr


def test_check_says_when_no_model_sees(folder: Path, tiny_model: Callable[..., Path]) -> None:
    (folder / "data.csv").write_text("text,image\nhello,a.png\n")
    flags = f"--prompt '{{{{ text }}}}' --image image --model {tiny_model('llama')}"
    done = invoke(f"batchrun check data.csv {flags}")

    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--image needs a model that takes images: choose one with --model" in done.stderr


def test_check_looks_at_each_row_with_its_own_model(
    folder: Path, tiny_model: Callable[..., Path]
) -> None:
    long = {"messages": [{"role": "user", "content": "word " * 30}]}
    rows = [long | {"model": "a"}, long | {"model": "b"}, long | {"model": "c"}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    small, large = tiny_model("llama", max_position_embeddings=8), tiny_model("llama")
    done = invoke(f"batchrun check rows.jsonl --model-map a={small} --model-map b={large}")

    faults = [line.split()[::2][:2] for line in done.stdout.splitlines()]
    assert sorted(faults) == [
        ["rows.jsonl:1", "context_length_exceeded"],
        ["rows.jsonl:3", "model_not_found"],
    ]
    assert done.stderr.startswith("Faulty rows: 2 of 3.")


def test_of_many_faults_of_a_kind_the_first_are_shown(folder: Path) -> None:
    (folder / "bad.jsonl").write_text("{\n" * 1_005 + BAD_ROWS)
    done = invoke("batchrun check bad.jsonl")

    shown = [line.split()[2] for line in done.stdout.splitlines()[:-1]]
    assert shown == ["invalid_json_line"] * 5 + ["streaming_unsupported"]
    assert done.stdout.splitlines()[-1] == "... and 1,001 more of invalid_json_line"
    assert done.stderr.startswith("Faulty rows: 1,007 of 1,008.")
    assert invoke("batchrun check bad.jsonl --json").stdout.count("\n") == 1_007


def test_check_cannot_be_made_to_write_control_characters(folder: Path) -> None:
    line = '{"custom_id": "\\u001b[31m\\n", "method": "POST", "url": "/x", "body": {}}\n'
    (folder / "evil.jsonl").write_text(line)
    result = invoke("batchrun check evil.jsonl")

    assert result.stdout.count("\n") == 1
    assert "\x1b" not in result.stdout


# ---------------------------------------------------------------- help and version


def test_help_shows_every_flag_and_the_examples() -> None:
    text = invoke("batchrun --help").stdout

    assert text.startswith("Usage: batchrun INPUT... -o OUTPUT [FLAGS]\n")
    assert "       batchrun check INPUT... [FLAGS]\n" in text
    for flag in flags_of(run_command):
        assert f"{flag} " in text
    for line in EXAMPLES.strip().splitlines()[2:]:
        assert line.strip() in text


@pytest.mark.parametrize("command", [run_command, check])
def test_every_flag_has_a_line_of_help_that_ends_as_one(command: click.Command) -> None:
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, param.name
            assert param.help.partition("  [")[0].endswith("."), param.name


def test_help_of_check_shows_its_flags() -> None:
    text = invoke("batchrun check --help").stdout

    for flag in flags_of(check):
        assert flag in text


def test_the_short_h_is_help_too() -> None:
    assert "--max-num-seqs" in invoke("batchrun -h").stdout
    assert "--json" in invoke("batchrun check -h").stdout


def test_no_arguments_show_the_help() -> None:
    result = invoke("batchrun")

    assert result.exit_code == 2
    assert "--max-num-seqs" in result.output


def test_the_examples_of_the_help_start(
    fake: FakeRun, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "samples").symlink_to(Path(__file__).parent.parent / "samples")
    examples = EXAMPLES.replace("\\\n", " ").split("\n")
    commands = [line.strip() for line in examples if line.strip().startswith("batchrun ")]

    assert len(commands) == 3
    for command in commands:
        result = invoke(command)
        assert result.exit_code == 0, result.output


def test_version() -> None:
    try:
        installed = version("batchrun")
    except PackageNotFoundError:
        pytest.skip("batchrun is not installed")
    assert invoke("batchrun --version").stdout == f"batchrun {installed}\n"
    assert batchrun.__version__ == installed


@pytest.mark.parametrize(
    "code",
    [
        "import batchrun",
        "from batchrun import run",
        "from batchrun.cli import main; main(['--help'], standalone_mode=False)",
        "from batchrun.cli import main; main(['check', '--help'], standalone_mode=False)",
    ],
)
def test_help_and_import_load_nothing_heavy(code: str) -> None:
    probe = f"import sys; {code}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    command = [sys.executable, "-c", probe]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("batchrun sh", {"plain,show", "file,sh"}),
        ("batchrun --kv", {"plain,--kv-bits"}),
        ("batchrun in.jsonl --kv-bits 8 --top-", {"plain,--top-k", "plain,--top-p"}),
        ("batchrun show --fail", {"plain,--failed"}),
        ("batchrun show ou", {"file,ou"}),
    ],
)
def test_a_shell_can_complete_commands_flags_and_files(typed: str, offered: set[str]) -> None:
    typing = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    env = typing | {"_BATCHRUN_COMPLETE": "bash_complete"}
    done = CliRunner().invoke(main, prog_name="batchrun", env=env)

    assert set(done.stdout.splitlines()) == offered


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "batchrun", "--help"]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)

    assert done.stdout.startswith("Usage: batchrun INPUT...")


# ---------------------------------------------------------------- several ranks


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with other ranks, in place of doing it."""
    done: list[str] = []
    follower = ModuleType("batchrun.together.follow")
    follower.follow = lambda: done.append("follow")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batchrun.together.follow", follower)
    monkeypatch.setattr("batchrun.cli.join", lambda: done.append("join"))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return done


@pytest.mark.parametrize("command", ["in.jsonl -o out.parquet", "job none.toml", "run --help"])
def test_other_ranks_follow_runs_and_jobs(
    met: list[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("MLX_RANK", "1")
    result = invoke(f"batchrun {command}")

    assert (result.exit_code, result.output, met) == (0, "", ["follow"])


@pytest.mark.parametrize(
    "command",
    ["check bad.jsonl", "init in.jsonl", "show out.parquet", "cache list", "--help", "check -h"],
)
def test_other_ranks_leave_all_else_to_rank_0(
    met: list[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("MLX_RANK", "1")
    result = invoke(f"batchrun {command}")

    assert (result.exit_code, result.output, met) == (0, "", [])


def test_rank_0_meets_the_others_for_what_they_take_part_in(
    fake: FakeRun, met: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_RANK", "0")

    assert invoke("batchrun check in.jsonl").exit_code == 0
    assert invoke("batchrun --help").stdout.startswith("Usage: ")
    assert met == []
    assert invoke("batchrun in.jsonl").exit_code == 2
    assert invoke("batchrun in.jsonl -o out.parquet").exit_code == 0
    assert met == ["join", "join"]


# ---------------------------------------------------------------- the library


def test_the_library_runs_as_the_command_does(fake: FakeRun) -> None:
    summary = batchrun.run(
        "in.jsonl", Path("bad.jsonl"), output="out.parquet", max_tokens=9, keep_all=True
    )

    assert summary is fake.summary
    library = fake.config
    invoke("batchrun in.jsonl bad.jsonl -o out.parquet --max-tokens 9 --keep-all")
    assert fake.config == library


def test_no_module_takes_the_place_of_the_librarys_run() -> None:
    names = [module.name for module in pkgutil.iter_modules(batchrun.__path__)]

    assert not {"run", "Engine"} & set(names)


def test_the_library_takes_no_list_for_a_path(fake: FakeRun) -> None:
    with pytest.raises(TypeError, match="not list"):
        batchrun.run(["in.jsonl"], output="out.jsonl")  # type: ignore[arg-type]
    assert fake.config is None


def test_the_library_refuses_an_unknown_flag(fake: FakeRun) -> None:
    with pytest.raises(TypeError, match="did you mean 'max_num_seqs'"):
        batchrun.run("in.jsonl", output="out.parquet", max_num_seq=4)


def test_the_command_and_the_library_have_the_same_flags() -> None:
    not_shared = {"output", "input", "json"}  # arguments, and a matter of printing
    names = {flag[2:].replace("-", "_") for flag in flags_of(run_command)}

    assert names - not_shared == {field.name for field in fields(Flags)}


def test_the_engine_is_loaded_when_asked_for() -> None:
    from batchrun.engine import Engine

    assert batchrun.Engine is Engine
    with pytest.raises(AttributeError, match="no attribute 'engin'"):
        batchrun.__getattr__("engin")
