"""The other commands, given URLs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from batchrun.cli import main
from batchrun.remote import place
from tests.bucket import Bucket
from tests.running import write_jsonl

ROWS = [{"custom_id": name, "prompt": f"about {name}"} for name in "ab"] + [{"custom_id": "bad"}]


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


@pytest.fixture
def output(bucket: Bucket, tmp_path: Path, tiny_model: Callable[..., Path]) -> str:
    """The URL of an output of two answers and a failure, from `in.jsonl` beside it."""
    bucket.put("in.jsonl", write_jsonl(tmp_path / "in.jsonl", ROWS).read_bytes())
    url = f"{bucket.url}/out.parquet"
    model = ("--model", str(tiny_model("llama")), "--max-tokens", "2", "--quiet")
    assert command(f"{bucket.url}/in.jsonl", "-o", url, *model).exit_code == 3
    return url


def test_show_export_and_report_take_urls(bucket: Bucket, output: str, tmp_path: Path) -> None:
    shown = command("show", output, "--custom-id", "b")
    assert json.loads(shown.stdout)["custom_id"] == "b"
    assert command("show", output, "--failed").stdout.count("\n") == 1

    exported = command("export", output, "-o", f"{bucket.url}/deep/x.jsonl")
    assert exported.stderr == f"Written: {bucket.url}/deep/x.jsonl, 3 answers and failures\n"
    assert bucket.get("deep/x.jsonl").count(b"\n") == 3
    assert command("export", output, "-o", str(tmp_path / "x.csv")).exit_code == 0
    assert (tmp_path / "x.csv").read_text().count("about") == 0
    assert "is the output itself" in command("export", output, "-o", output).stderr

    page = bucket.get("out.report.html")
    bucket.put("out.report.html", b"")
    written = command("report", output)
    assert written.stderr == f"Written: {bucket.url}/out.report.html\n"
    assert len(bucket.get("out.report.html")) == len(page)
    named = command("report", f"{bucket.url}/out.report.json", "--json")
    assert json.loads(named.stdout)["output"] == output


def test_a_report_is_found_in_the_output_itself(bucket: Bucket, output: str) -> None:
    bucket.put("moved/away.parquet", bucket.get("out.parquet"))
    found = command("report", f"{bucket.url}/moved/away.parquet", "--json")

    assert json.loads(found.stdout)["output"] == output


def test_what_is_not_there_is_named(bucket: Bucket) -> None:
    url = f"{bucket.url}/none.parquet"
    for arguments in (["show", url], ["export", url, "-o", "x.csv"], ["report", url]):
        result = command(*arguments)
        assert result.exit_code == 2
        assert result.stderr == f"Error: {url}: there is no such file, folder or bucket\n"


def test_what_is_said_of_a_copy_names_what_it_is_a_copy_of(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.put("bad.parquet", b"no Parquet")
    for arguments in (["show", url], ["export", url, "-o", str(tmp_path / "x.csv")]):
        stderr = command(*arguments).stderr
        assert stderr.startswith(f"Error: {url}: cannot be read as an output of batchrun")
    assert command("report", url).stderr.startswith(f"Error: {url}: there is no bad.report.json")
    assert (
        f"of {bucket.url}/x.txt: end" in command("export", url, "-o", f"{bucket.url}/x.txt").stderr
    )


def test_a_file_takes_the_place_of_no_folder_elsewhere(bucket: Bucket, output: str) -> None:
    bucket.put("deep/x.jsonl", b"")
    for name in ("deep", "deep/", "new/"):
        stderr = command("export", output, "-o", f"{bucket.url}/{name}").stderr
        assert "is a folder; name a file in it" in stderr


def test_shards_are_joined_by_their_urls(
    bucket: Bucket, output: str, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    model = ("--model", str(tiny_model("llama")), "--max-tokens", "2", "--quiet")
    shards = [f"{bucket.url}/shards/{number}.parquet" for number in (1, 2)]
    for number, shard in enumerate(shards, start=1):
        flags = ("--shard", f"{number}/2", *model)
        assert command(f"{bucket.url}/in.jsonl", "-o", shard, *flags).exit_code in (0, 3)
    stderr = command(f"{bucket.url}/in.jsonl", "-o", shards[0], "--shard", "2/2", *model).stderr
    assert f"{shards[0]}: holds the rows of shard 1/2; give each shard" in stderr

    whole = {name: bucket.get(name) for name in ("out.parquet", "out.errors.jsonl")}
    joined = command("merge", *shards, "-o", output, "--json")
    assert joined.exit_code == 3, joined.stderr
    summary = json.loads(joined.stdout)
    assert (summary["output"], summary["request_counts"]["total"]) == (output, 3)
    assert json.loads(bucket.get("out.report.json"))["notes"][0].startswith("Joined from 2 shards")
    assert bucket.get("out.errors.jsonl") == whole["out.errors.jsonl"]
    assert bucket.get("out.parquet") != whole["out.parquet"]
    assert list(place(output).path.parent.iterdir()) == []

    local = tmp_path / "all.jsonl"
    assert command("merge", *shards, "-o", str(local)).exit_code == 3
    assert local.read_bytes().count(b"\n") == 3
    assert command("merge", shards[0], "-o", output).stderr == (
        "Error: shard 2/2 is missing: name its output too\n"
    )
    refused = command("merge", *shards, "-o", shards[0]).stderr
    assert refused.startswith(f"Error: {shards[0]}: is an input")
    assert (
        "is a folder; name a file" in command("merge", shards[0], "-o", f"{bucket.url}/a/").stderr
    )


def test_errors_beside_a_joined_output_go_with_the_failures(
    bucket: Bucket, output: str, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    write_jsonl(tmp_path / "in.jsonl", ROWS[:2])
    shard = str(tmp_path / "1.jsonl")
    model = ("--model", str(tiny_model("llama")), "--max-tokens", "2", "--quiet")
    command(str(tmp_path / "in.jsonl"), "-o", shard, "--shard", "1/1", *model)

    assert "out.errors.jsonl" in bucket.names()
    assert command("merge", shard, "-o", output).exit_code == 0
    assert "out.errors.jsonl" not in bucket.names()


@pytest.mark.parametrize(
    "arguments", [["job", "{}/j.toml"], ["init", "{}/in.jsonl", "-o", "{}/j.toml"]]
)
def test_what_has_to_be_here_is_said(bucket: Bucket, output: str, arguments: list[str]) -> None:
    done = command(*(text.format(bucket.url) for text in arguments))

    assert done.exit_code == 2
    assert done.stderr == f"Error: {bucket.url}/j.toml: has to be a file on this machine\n"


def test_check_reads_urls(bucket: Bucket, output: str, tiny_model: Callable[..., Path]) -> None:
    result = command("check", f"{bucket.url}/in.jsonl", "--model", str(tiny_model("llama")))

    assert result.exit_code == 3
    assert result.stdout.startswith(f"{bucket.url}/in.jsonl:3 bad missing_required_parameter")


def test_job_files_name_urls(
    bucket: Bucket, output: str, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    started = command("init", f"{bucket.url}/in.jsonl")
    assert f'input = "{bucket.url}/in.jsonl"' in started.stdout

    file = tmp_path / "job.toml"
    file.write_text(
        f'input = "s3://$BUCKET/*.jsonl"\noutput = "{bucket.url}/jobs/%Y/out.jsonl"\n'
        f'model = "{tiny_model("llama")}"\nmax-tokens = 2\nquiet = true\n'
    )
    result = CliRunner().invoke(main, ["job", str(file)], env={"BUCKET": bucket.name})
    assert result.exit_code == 3, result.stderr
    (year,) = {key.split("/")[1] for key in bucket.names() if key.startswith("jobs/")}
    assert year.isdecimal()
    assert not list(tmp_path.glob("s3*"))


def test_cache_commands_are_for_folders_here(bucket: Bucket) -> None:
    for name in ("list", "verify", "clear", "prune"):
        result = command("cache", name, "--prefix-cache-dir", f"{bucket.url}/prefixes")
        assert result.exit_code == 2
        assert "is looked after with the store's own tools" in result.stderr


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--media-root={}/none", "no such folder"),
        ("--media-root=https://host/images", "on the web are no folders"),
        ("--prefix-cache-dir=https://host/prefixes", "nothing can be kept there"),
        ("--log-file={}/x.log", "x.log: has to be a file on this machine"),
        ("--json-schema={}/x.json", "x.json: has to be a file on this machine"),
        ("--prefix-cache-dir=odd://host/prefixes", "no store is known"),
    ],
)
def test_flags_with_urls_that_cannot_work(
    bucket: Bucket, tmp_path: Path, flag: str, said: str
) -> None:
    source = str(write_jsonl(tmp_path / "in.jsonl", ROWS))
    result = command(source, "-o", str(tmp_path / "out.jsonl"), flag.format(bucket.url))

    assert result.exit_code == 2
    assert said in result.stderr


def test_an_empty_state_folder_is_no_trouble(bucket: Bucket, output: str) -> None:
    folder = place(output).path.parent
    assert list(folder.iterdir()) == []
    folder.rmdir()
    assert command("show", output).exit_code == 0
