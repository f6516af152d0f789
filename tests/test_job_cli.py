"""batchrun job and batchrun init, on a tiny model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from batchrun.cli import main
from batchrun.sink import hold
from tests.command import ROOT
from tests.running import read_parquet, write_jsonl

JOB = """
input = "rows/*.jsonl"
model = "{model}"
quiet = true

[prompt]
prompt = "say {{{{ word }}}}"

[sampling]
max-tokens = 3

[output]
output = "out/{name}.parquet"
keep = ["word"]
"""


@pytest.fixture
def folder(
    tmp_path: Path, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Jobs in a folder that is not the current one, and rows in a folder beside them."""
    jobs = tmp_path / "jobs"
    (jobs / "rows").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        text = JOB.format(model=tiny_model("llama"), name=name)
        (jobs / f"{name}.toml").write_text(text)
    write_jsonl(jobs / "rows" / "a.jsonl", [{"word": word} for word in ("red", "blue", "green")])
    return jobs


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["job", *arguments])


def words(output: Path) -> list[str]:
    return [row["word"] for row in read_parquet(output)]


def test_a_job_runs_as_it_is_written_from_anywhere(folder: Path) -> None:
    done = invoke("jobs/one.toml")

    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert words(folder / "out" / "one.parquet") == ["red", "blue", "green"]


def test_flags_of_the_command_line_go_before_it(folder: Path) -> None:
    done = invoke(
        "jobs/one.toml", "--limit", "1", "-o", "other.parquet", "--json", "--max-tokens", "2"
    )
    summary = json.loads(done.stdout)

    assert done.exit_code == 0
    assert summary["tokens"]["completion"] == 2
    assert summary["request_counts"]["total"] == 1
    assert summary["configuration"]["source"]["keep"] == ["word"]
    assert not (folder / "out" / "one.parquet").exists()


def test_several_jobs_print_a_line_each(folder: Path) -> None:
    done = invoke("jobs/one.toml", "jobs/two.toml", "--json")
    outputs = [Path(json.loads(line)["output"]).name for line in done.stdout.splitlines()]

    assert outputs == ["one.parquet", "two.parquet"]


def test_what_is_wrong_with_the_last_shows_before_the_first_runs(folder: Path) -> None:
    (folder / "two.toml").write_text("input = 'gone.jsonl'\noutput = 'x.jsonl'")
    done = invoke("jobs/one.toml", "jobs/two.toml")

    assert done.exit_code == 2
    assert "gone.jsonl: no such file" in done.stderr
    assert not (folder / "out" / "one.parquet").exists()


def test_jobs_after_one_that_is_held_still_run(folder: Path) -> None:
    (folder / "out").mkdir()
    with hold(folder / "out" / "one.parquet"):
        done = invoke("jobs/one.toml", "jobs/two.toml")

    assert done.exit_code == 75
    assert "one.parquet is held by another run" in done.stderr
    assert words(folder / "out" / "two.parquet") == ["red", "blue", "green"]


def test_two_jobs_cannot_have_one_output(folder: Path) -> None:
    done = invoke("jobs/one.toml", "jobs/two.toml", "-o", "x.parquet")

    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


def test_check_validates_job_and_rows_and_runs_nothing(folder: Path) -> None:
    write_jsonl(folder / "rows" / "b.jsonl", [{"wort": "rot"}])
    done = invoke("--check", "jobs/one.toml")

    assert done.exit_code == 3
    assert "b.jsonl:1 - missing_column" in done.stdout
    assert "Faulty rows: 1 of 4." in done.stderr
    assert not (folder / "out" / "one.parquet").exists()


def test_check_makes_no_folder(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    with (folder / "one.toml").open("r+") as file:
        text = 'log-file = "logs/%Y.log"\n' + file.read()
        file.seek(0)
        file.write(text)

    assert invoke("--check", "jobs/one.toml").exit_code == 0
    assert sorted(folder.rglob("*")) == before


def test_check_finds_an_output_that_cannot_be_there(folder: Path) -> None:
    (folder / "out").write_text("no folder")
    done = invoke("--check", "jobs/one.toml")

    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "out: cannot be made in " in done.stderr


def test_the_environment_goes_before_a_job_and_behind_flags(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHRUN_MAX_TOKENS", "2")
    monkeypatch.setenv("BATCHRUN_LIMIT", "2")
    summary = json.loads(invoke("jobs/one.toml", "--limit", "1", "--json").stdout)

    assert summary["tokens"]["completion"] == 2
    assert summary["request_counts"]["total"] == 1


def test_check_says_what_no_run_understands(folder: Path) -> None:
    (folder / "one.toml").write_text("imput = 'a'")
    done = invoke("--check", "jobs/one.toml")

    assert done.exit_code == 2
    assert done.stderr == ("Error: jobs/one.toml: there is no 'imput'; did you mean 'input'?\n")


@pytest.mark.parametrize(
    ("line", "flags", "message"),
    [
        ("shard = '3/2'", (), "jobs/one.toml: 'shard' must be one of so many, as 1/4 to 4/4"),
        ("label = true", (), "jobs/one.toml: 'label' needs 'choices', which says"),
        ("shard = '3/2'", ("--shard", "4/2"), "--shard must be one of so many, as 1/4"),
        ("limit = 1", ("--shard", "4/2"), "--shard must be one of so many, as 1/4"),
        ("label = true", ("--regex", "a"), "jobs/one.toml: 'label' needs 'choices'"),
        ("log-file = 's3://b/x'", (), "jobs/one.toml: 'log-file' s3://b/x: has to be a file on"),
        ("image = 'none'", (), "jobs/one.toml: 'image' needs a model that takes images"),
    ],
)
def test_a_wrong_value_is_told_as_it_stands_in_the_file(
    folder: Path, line: str, flags: tuple[str, ...], message: str
) -> None:
    path = folder / "one.toml"
    path.write_text(f"{line}\n{path.read_text()}")
    for checked in ((), ("--check",)):
        done = invoke("jobs/one.toml", *flags, *checked)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"Error: {message}")


def test_a_folder_that_grows_is_labelled_night_by_night(folder: Path) -> None:
    text = (folder / "one.toml").read_text()
    text = text.replace("rows/*.jsonl", "rows").replace("out/one.parquet", "labels/")
    (folder / "one.toml").write_text(text)
    counts = []
    for night in ("b", "c", "c"):
        write_jsonl(folder / "rows" / f"{night}.jsonl", [{"word": night}, {"word": "white"}])
        counts.append(json.loads(invoke("jobs/one.toml", "--json").stdout)["request_counts"])
    parts = sorted((folder / "labels").iterdir())

    assert [(each["completed"], each["reused"]) for each in counts] == [(5, 0), (7, 6), (7, 7)]
    assert [words(part) for part in parts] == [
        ["red", "blue", "green", "b", "white"],
        ["c", "white"],
    ]


def test_log_and_manners_of_a_job(folder: Path) -> None:
    with (folder / "one.toml").open("r+") as file:
        rest = file.read()
        file.seek(0)
        file.write('log-file = "logs/%Y.log"\nallow-sleep = true\nwait = true\n' + rest)
    assert invoke("jobs/one.toml").exit_code == 0
    (log,) = (folder / "logs").iterdir()

    assert "INFO 3 of 3 rows answered" in log.read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows/a.jsonl", None),
        ("50% $off.csv", 'my text,"a ""b"""\n"quoted ""text""\nof two lines",2\n'),
        ("requests.jsonl", '{"messages": [{"role": "user", "content": "hi"}]}\n'),
    ],
)
def test_what_init_writes_runs(
    folder: Path, tiny_model: Callable[..., Path], name: str, content: str | None
) -> None:
    if content is not None:
        (folder / name).write_text(content)
    done = CliRunner().invoke(main, ["init", f"jobs/{name}", "-o", "jobs/new.toml"])
    assert done.exit_code == 0, done.stderr
    flags = ("--model", str(tiny_model("llama")), "--json", "--max-tokens", "3")
    summary = json.loads(invoke("jobs/new.toml", *flags).stdout)

    assert summary["status"] == "completed"
    assert Path(summary["output"]).parent.samefile(folder)


def test_what_init_writes_looks_at_the_images(folder: Path) -> None:
    source = folder / "shapes.parquet"
    shutil.copy(ROOT / "samples" / "shapes.parquet", source)
    begun = CliRunner().invoke(main, ["init", "jobs/shapes.parquet", "-o", "jobs/new.toml"])
    assert begun.exit_code == 0, begun.stderr
    model = str(ROOT / "samples" / "shapes-vlm")
    summary = json.loads(invoke("jobs/new.toml", "--model", model, "--json").stdout)

    assert summary["media"]["used"] == 15
    answers = read_parquet(Path(summary["output"]))
    assert "image" not in answers[0]
    shown = [row for row in read_parquet(source) if row["image"] is not None]
    assert len(shown) == 15


def test_what_init_writes_for_images_is_not_answered_blind(
    folder: Path, tiny_model: Callable[..., Path]
) -> None:
    write_jsonl(folder / "seen.jsonl", [{"picture": "a.png"}, {"picture": "b.png"}])
    begun = CliRunner().invoke(main, ["init", "jobs/seen.jsonl", "-o", "jobs/new.toml"])
    assert begun.exit_code == 0, begun.stderr
    flags = ("--model", str(tiny_model("llama")), "--json")
    done = invoke("jobs/new.toml", *flags)

    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "jobs/new.toml: 'image' needs a model that takes images" in done.stderr


def test_init_prints_and_replaces_nothing(folder: Path) -> None:
    printed = CliRunner().invoke(main, ["init", "jobs/rows/a.jsonl"])
    again = CliRunner().invoke(main, ["init", "jobs/rows/a.jsonl", "-o", "jobs/one.toml"])

    assert 'input = "jobs/rows/a.jsonl"' in printed.stdout
    assert "#   word: red" in printed.stdout
    assert again.exit_code == 2
    assert "is there already" in again.stderr


def test_init_into_a_folder_that_is_not_there_is_one_line(folder: Path) -> None:
    done = CliRunner().invoke(main, ["init", "jobs/rows/a.jsonl", "-o", "nowhere/new.toml"])

    assert done.exit_code == 2
    assert done.stderr.startswith("Error: nowhere/new.toml: there is no folder nowhere; ")
