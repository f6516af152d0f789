"""Whole runs with inputs and outputs in a bucket of a real server on this machine."""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import batchrun
from batchrun import ending
from batchrun.errors import OutputBusy, RunError, UsageError
from batchrun.remote import place
from batchrun.report.summary import Summary
from batchrun.sink import hold, journal_path
from tests.bucket import Bucket
from tests.command import Command, answers
from tests.running import computed, read_jsonl, texts, write_jsonl

Run = Callable[..., Summary]


def rows(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"custom_id": name, "prompt": f"about {name}"} | fields for name in names]


def lines(found: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in found)


@pytest.fixture(autouse=True)
def _quick_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchrun.report.page.render_page", lambda report: "a page")


@pytest.fixture
def run(bucket: Bucket, tiny_model: Callable[..., Path]) -> Run:
    """`run(input, output, **flags)`: by the names of objects, on a tiny model."""

    def run(source: str, output: str, **flags: Any) -> Summary:
        defaults = {"model": str(tiny_model("llama")), "max_tokens": 4, "quiet": True}
        target = f"{bucket.url}/{output}"
        return batchrun.run(f"{bucket.url}/{source}", output=target, **(defaults | flags))

    return run


def here(bucket: Bucket, key: str, folder: Path) -> Path:
    """A copy of an object, to be looked into."""
    path = folder / Path(key).name
    path.write_bytes(bucket.get(key))
    return path


def state(bucket: Bucket) -> list[str]:
    """What is kept here for outputs at the top of the bucket."""
    return sorted(path.name for path in place(f"{bucket.url}/x.jsonl").path.parent.iterdir())


# ---------------------------------------------------------------- inputs and outputs


def test_every_form_of_input_answers_as_files_here_do(
    bucket: Bucket, run: Run, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    table = pa.table({"custom_id": ["p1", "p2"], "prompt": ["about p1", "about p2"]})
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=1)
    (tmp_path / "a.jsonl").write_bytes(lines(rows("a1", "a2")))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(rows("b1"))))
    (tmp_path / "c.jsonl.zst").write_bytes(pa.compress(lines(rows("c1")), "zstd", asbytes=True))
    (tmp_path / "e.csv").write_text("custom_id,prompt\ne1,about e1\n")
    (tmp_path / "f.tsv").write_text("custom_id\tprompt\nf1\tabout f1\n")
    files = sorted(path.name for path in tmp_path.iterdir())
    for name in files:
        bucket.put(f"in/{name}", (tmp_path / name).read_bytes())
    bucket.put("in/_SUCCESS", b"")
    bucket.put("in/read.me", b"not data")
    local = tmp_path / "local.jsonl"
    flags: dict[str, Any] = {"model": str(tiny_model("llama")), "max_tokens": 4, "quiet": True}
    batchrun.run(*(tmp_path / name for name in files), output=local, **flags)
    expected = [line["response"]["body"] for line in read_jsonl(local)]

    for source in ("in/", "in/[a-f].*"):
        summary = run(source, "out.jsonl", fresh=True)
        found = read_jsonl(here(bucket, "out.jsonl", tmp_path))
        assert computed(summary) == 8
        names = ["a1", "a2", "b1", "c1", "p1", "p2", "e1", "f1"]
        assert [line["custom_id"] for line in found] == names
        assert [line["response"]["body"]["choices"] for line in found] == [
            [{**choice, "usage": {**choice["usage"], **timing}} for choice in body["choices"]]
            for body, timing in zip(expected, map(timings, found), strict=True)
        ]


def timings(line: dict[str, Any]) -> dict[str, Any]:
    usage = line["response"]["body"]["choices"][0]["usage"]
    return {name: usage[name] for name in ("seconds", "finished_at")}


def test_output_report_and_errors_are_there_and_nothing_stays_here(
    bucket: Bucket, run: Run, tmp_path: Path
) -> None:
    bucket.put("in.jsonl", lines([*rows("a", "b"), {"custom_id": "bad"}]))
    summary = run("in.jsonl", "out.parquet")

    assert summary.exit_status == 3
    beside = ["out.errors.jsonl", "out.report.html", "out.report.json"]
    assert bucket.names() == ["in.jsonl", *beside[:1], "out.parquet", *beside[1:]]
    assert state(bucket) == []
    (error,) = read_jsonl(here(bucket, "out.errors.jsonl", tmp_path))
    assert (error["file"], error["line"]) == (f"{bucket.url}/in.jsonl", 3)
    report = json.loads(bucket.get("out.report.json"))
    assert report["output"] == summary.output == f"{bucket.url}/out.parquet"
    assert report["errors_file"] == f"{bucket.url}/out.errors.jsonl"
    assert report["page"] == f"{bucket.url}/out.report.html"

    bucket.put("in.jsonl", lines(rows("a", "b")))
    assert run("in.jsonl", "out.parquet").request_counts.reused == 2
    assert "out.errors.jsonl" not in bucket.names()


def test_answers_in_the_bucket_are_reused_from_another_machine(
    bucket: Bucket, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("in.jsonl", lines(rows("a", "b", "c")))
    run("in.jsonl", "out.jsonl")
    before = dict(zip("abc", texts(here(bucket, "out.jsonl", tmp_path)), strict=True))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    bucket.put("in.jsonl", lines(rows("c", "new", "a")))
    summary = run("in.jsonl", "out.jsonl")

    assert (computed(summary), summary.request_counts.reused) == (1, 2)
    after = texts(here(bucket, "out.jsonl", tmp_path))
    assert (after[0], after[2]) == (before["c"], before["a"])


def test_a_folder_gets_a_part_with_the_new_rows_each_time(
    bucket: Bucket, run: Run, tmp_path: Path
) -> None:
    bucket.put("in.jsonl", lines(rows("a", "b")))
    run("in.jsonl", "labels/")
    first = bucket.get("labels/part-00001.parquet")
    bucket.put("in.jsonl", lines(rows("b", "c")))
    summary = run("in.jsonl", "labels")  # by now it is known for a folder

    assert computed(summary) == 1
    parts = [key for key in bucket.names() if key.startswith("labels/")]
    assert parts == ["labels/part-00001.parquet", "labels/part-00002.parquet"]
    assert bucket.get("labels/part-00001.parquet") == first
    second = pq.read_table(here(bucket, parts[1], tmp_path))
    assert second["custom_id"].to_pylist() == ["c"]

    run("in.jsonl", "labels/", removed="drop")
    assert pq.read_table(here(bucket, parts[0], tmp_path))["custom_id"].to_pylist() == ["b"]
    run("in.jsonl", "labels/", fresh=True)
    assert [key for key in bucket.names() if "part" in key] == ["labels/part-00003.parquet"]
    bucket.put("labels/notes.txt", b"")
    with pytest.raises(UsageError, match=r"labels: holds notes\.txt, which is no part"):
        run("in.jsonl", "labels/")


def test_a_store_in_memory_does_too(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/bucket/in.jsonl", lines(rows("a", "b")))
    model = str(tiny_model("llama"))
    for reused in (0, 2):
        summary = batchrun.run(
            "memory://bucket/*.jsonl",
            output="memory://bucket/out/x.parquet",
            model=model,
            max_tokens=2,
            quiet=True,
        )
        assert summary.request_counts.reused == reused
    found = sorted(memory.find("/bucket"))
    memory.rm("/bucket", recursive=True)

    names = ("x.parquet", "x.report.html", "x.report.json")
    assert found == ["/bucket/in.jsonl", *(f"/bucket/out/{name}" for name in names)]


def test_a_file_url_is_a_file(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    write_jsonl(tmp_path / "in.jsonl", rows("a"))
    output = tmp_path / "out.jsonl"
    model = str(tiny_model("llama"))
    source = f"file://{tmp_path}/in.jsonl"
    batchrun.run(source, output=f"file://{output}", model=model, max_tokens=2, quiet=True)

    assert len(texts(output)) == 1


def test_a_signed_web_url_is_read_and_told_to_nobody(
    bucket: Bucket, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    bucket.put("in.jsonl", lines([*rows("a"), {"custom_id": "bad"}]))
    url = bucket.signed("in.jsonl")
    (query,) = url.split("?")[1:]
    output = tmp_path / "out.jsonl"
    log = tmp_path / "log"
    flags: dict[str, Any] = {"model": str(tiny_model("llama")), "max_tokens": 2, "log_file": log}
    summary = batchrun.run(url, output=output, quiet=True, **flags)

    assert summary.request_counts.completed == 1
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert f"{bucket.address}/{bucket.name}/in.jsonl?" in written
    assert not [part for part in query.split("&") if part in written]
    with pytest.raises(UsageError) as caught:
        batchrun.run(url.replace("/in.jsonl", "/none.jsonl"), output=output, **flags)
    assert "none.jsonl?" in str(caught.value)
    assert "Signature" not in str(caught.value)
    with pytest.raises(UsageError, match=r"in\.jsonl: cannot be reached \(403") as caught:
        batchrun.run(url.partition("?")[0], output=output, **flags)
    with pytest.raises(UsageError, match="cannot be reached") as caught:
        batchrun.run("http://127.0.0.1:9/in.jsonl?sig=secret", output=output, **flags)
    assert "secret" not in str(caught.value)


# ---------------------------------------------------------------- media and prefixes


def test_images_in_a_bucket_are_those_of_a_folder(bucket: Bucket, run: Run, tmp_path: Path) -> None:
    from tests.test_runner_images import COLOUR, COLOURS, FLAGS, disc

    for colour in COLOURS:
        bucket.put(f"in/images/{colour}.png", disc(tmp_path / "a.png", colour).read_bytes())
    bucket.put("out.png", bucket.get("in/images/red.png"))
    named = [*(f"images/{colour}.png" for colour in COLOURS), f"{bucket.url}/out.png", "../out.png"]
    named.append(f"{bucket.url}/in/images/red.png")
    bucket.put("in/rows.jsonl", lines([{"question": COLOUR, "image": name} for name in named]))
    flags: dict[str, Any] = FLAGS | {"prompt": "{{ question }}", "image": "image"}
    summary = run("in/rows.jsonl", "out.jsonl", **flags)

    found = texts(here(bucket, "out.jsonl", tmp_path))
    assert found == [*COLOURS, None, None, "red"]
    assert summary.errors["media_path_refused"].count == 2
    write_jsonl(tmp_path / "in.jsonl", [{"question": COLOUR, "image": "images/blue.png"}])
    batchrun.run(
        tmp_path / "in.jsonl",
        output=tmp_path / "local.jsonl",
        **flags | {"media_root": f"{bucket.url}/in"},
    )
    assert texts(tmp_path / "local.jsonl") == ["blue"]


def test_prefixes_in_a_bucket_serve_a_second_machine(
    bucket: Bucket, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = "A long instruction that all of these rows begin with. " * 12
    found = []
    for machine in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        bucket.put("in.jsonl", lines([{"text": f"{n} {machine}"} for n in "abcd"]))
        summary = run(
            "in.jsonl",
            f"{machine}.jsonl",
            system=system,
            prompt="{{ text }}",
            prefix_cache_dir=f"{bucket.url}/prefixes",
        )
        assert summary.notes == []
        found.append(summary.prompt_tokens.disk)
    alone = run("in.jsonl", "alone.jsonl", system=system, prompt="{{ text }}", no_prefix_cache=True)

    assert alone.exit_status == 0
    assert found[0] == 0 < found[1]
    assert any(key.startswith("prefixes/") for key in bucket.names())
    two, one = (texts(here(bucket, f"{name}.jsonl", tmp_path)) for name in ("two", "alone"))
    assert two == one


# ---------------------------------------------------------------- what goes wrong


def test_an_output_that_cannot_be_uploaded_costs_no_answer(
    bucket: Bucket, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ending.sink.write_output

    def write_and_lose_the_bucket(*args: Any, **kwargs: Any) -> None:
        write(*args, **kwargs)
        bucket.delete()

    bucket.put("in.jsonl", lines(rows("a", "b")))
    with monkeypatch.context() as patched:
        patched.setattr(ending.sink, "write_output", write_and_lose_the_bucket)
        with pytest.raises(RunError, match=r"out\.parquet: .*run again, all answers are kept in"):
            run("in.jsonl", "out.parquet")
    bucket.make()
    assert "out.parquet.journal" in state(bucket)

    bucket.put("in.jsonl", lines(rows("a", "b")))
    summary = run("in.jsonl", "out.parquet")
    assert (summary.exit_status, computed(summary)) == (0, 0)
    assert len(texts(here(bucket, "out.parquet", tmp_path))) == 2
    assert state(bucket) == []


def test_a_killed_run_goes_on_from_its_journal(
    bucket: Bucket, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    names = [f"row {number}" for number in range(20)]
    source = bucket.put("in.jsonl", lines(rows(*names, max_tokens=32, ignore_eos=True)))
    output = f"{bucket.url}/out.jsonl"
    model = tiny_model("llama")
    flags = ("--max-num-seqs", "1")
    killed = Command(tmp_path, *flags, model=model, output=output, inputs=[source])
    journal = journal_path(place(output).path)
    killed.until(lambda: len(answers(journal)) >= 2)
    killed.signal(signal.SIGKILL)
    killed.wait()
    saved = len(answers(journal))
    assert bucket.names() == ["in.jsonl"]
    assert 2 <= saved < 20

    again = Command(tmp_path, *flags, "--json", model=model, output=output, inputs=[source])
    status, stdout, _ = again.wait()
    counts = json.loads(stdout)["request_counts"]
    assert (status, counts["completed"], counts["reused"]) == (0, 20, saved)
    assert None not in texts(here(bucket, "out.jsonl", tmp_path))
    assert not journal.exists()


def test_one_run_at_a_time_has_an_output(bucket: Bucket, run: Run) -> None:
    bucket.put("in.jsonl", lines(rows("a")))
    with (
        hold(place(f"{bucket.url}/out.parquet").path),
        pytest.raises(OutputBusy, match=rf"{bucket.url}/out\.jsonl is held by another run"),
    ):
        run("in.jsonl", "out.jsonl")


def test_a_stopped_run_reports_and_leaves_the_output_as_it_was(bucket: Bucket, run: Run) -> None:
    bucket.put("in.jsonl", lines(rows("a")))
    run("in.jsonl", "out.jsonl")
    before = bucket.get("out.jsonl")
    bucket.put("in.jsonl", lines([{"custom_id": "bad"}, *rows("a", "b", "c")]))
    summary = run("in.jsonl", "out.jsonl", fail_on_error=True)

    assert summary.status == "failed"
    assert bucket.get("out.jsonl") == before
    assert json.loads(bucket.get("out.report.json"))["status"] == "failed"
    assert "out.jsonl.journal" in state(bucket)


def test_what_is_no_output_is_not_replaced(bucket: Bucket, run: Run) -> None:
    bucket.put("in.jsonl", lines(rows("a")))
    bucket.put("out.jsonl", b"a diary\n")
    with pytest.raises(UsageError, match=rf"^{bucket.url}/out\.jsonl exists and is not an output"):
        run("in.jsonl", "out.jsonl")
    with pytest.raises(UsageError, match=r"in\.jsonl: is an input, and this run would replace it"):
        run("in.jsonl", "in.jsonl")

    assert bucket.get("out.jsonl") == b"a diary\n"


def test_places_that_are_not_there_are_named_at_once(bucket: Bucket, run: Run) -> None:
    source = bucket.put("in.jsonl", lines(rows("a")))
    with pytest.raises(UsageError, match=rf"{bucket.url}/none\.jsonl: no such file"):
        run("none.jsonl", "out.jsonl")
    with pytest.raises(UsageError, match=r"s3://no-such-bucket/\*\.jsonl: "):
        batchrun.run("s3://no-such-bucket/*.jsonl", output="out.jsonl")
    with pytest.raises(UsageError, match=r"no-such-bucket/out\.jsonl: there is no no-such-bucket"):
        batchrun.run(source, output="s3://no-such-bucket/out.jsonl")


@pytest.fixture
def _checked(bucket: Bucket) -> Iterator[None]:
    """From here on the server looks at credentials."""
    before = bucket.check_credentials("0")
    yield
    bucket.check_credentials(before)


@pytest.mark.usefixtures("_checked")
def test_wrong_credentials_are_said_in_one_line(bucket: Bucket, tmp_path: Path) -> None:
    command = Command(tmp_path, model=None, output="out.jsonl", inputs=[f"{bucket.url}/in.jsonl"])
    status, _, stderr = command.wait()

    assert status == 2
    assert stderr.startswith(f"Error: {bucket.url}/in.jsonl: access is denied (")
    assert "see which credentials the store's driver finds" in stderr
    assert stderr.count("\n") == 1


def test_a_server_that_is_not_there_is_said_in_one_line(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    command = Command(tmp_path, model=None, output="out.jsonl", inputs=[f"{bucket.url}/in.jsonl"])
    status, _, stderr = command.wait()

    assert status == 2
    assert stderr.startswith(f"Error: {bucket.url}/in.jsonl: cannot be reached (")
    assert stderr.count("\n") == 1
