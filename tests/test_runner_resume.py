"""What is answered once stays answered: through edits, failures, other formats, and stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchrun
from batchrun.errors import UsageError
from batchrun.models import LoadedModel
from batchrun.report.render import render
from batchrun.report.summary import Summary
from batchrun.sink import Journal
from tests.running import computed, read_jsonl, read_parquet, texts, write_jsonl


@pytest.fixture(params=["parquet", "jsonl"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"out.{request.param}"


def rows(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"custom_id": name, "prompt": f"about {name}"} | fields for name in names]


def finished_at(output: Path) -> dict[str, Any]:
    if output.suffix == ".parquet":
        return {row["request_key"]: row["finished_at"] for row in read_parquet(output)}
    return {
        line["response"]["request_id"]: choice["usage"]["finished_at"]
        for line in read_jsonl(output)
        for choice in line["response"]["body"]["choices"]
    }


def test_the_same_command_again_computes_nothing_and_needs_no_weights(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(rows("a", "b", "c"))
    first, moments = texts(output), finished_at(output)
    monkeypatch.setattr("batchrun.models.load", None)
    again = run(rows("a", "b", "c"))

    assert (computed(again), again.request_counts.reused) == (0, 3)
    assert (texts(output), finished_at(output)) == (first, moments)
    assert "nothing was left to do" in render(again)


def test_only_new_and_edited_rows_are_computed(run: Callable[..., Summary], output: Path) -> None:
    run(rows("a", "b", "c", "d"))
    before = dict(zip("abcd", texts(output), strict=True))
    # Reordered, one left out, one edited, one new.
    changed = [*rows("d", "a"), {"custom_id": "b", "prompt": "edited"}, *rows("new", "c")]
    summary = run(changed)

    assert computed(summary) == 2
    assert summary.tokens.completion <= 2 * 4
    after = texts(output)
    assert [after[0], after[1], after[4]] == [before["d"], before["a"], before["c"]]
    assert len(after) == 5


def test_sampling_decides_what_is_the_same_request(
    run: Callable[..., Summary], output: Path
) -> None:
    run(rows("a", "b"))
    assert computed(run([*rows("a", temperature=0.5), *rows("b", user="me")])) == 1
    assert computed(run(rows("a", "b", temperature=0.5), seed=3)) == 2
    assert computed(run(rows("a", "b", temperature=0.5), seed=4)) == 2


def test_another_model_answers_anew(
    run: Callable[..., Summary], tiny_model: Callable[..., Path]
) -> None:
    run(rows("a"))
    assert computed(run(rows("a"), model=str(tiny_model("llama", rope_theta=5000.0)))) == 1


def test_other_bits_of_the_kv_cache_answer_anew(run: Callable[..., Summary]) -> None:
    assert computed(run(rows("a", "b"), kv_bits=8)) == 2
    assert computed(run(rows("a", "b"), kv_bits=8)) == 0
    assert computed(run(rows("a", "b"), kv_bits="4")) == 2
    assert computed(run(rows("a", "b"))) == 2


def test_fresh_starts_over(run: Callable[..., Summary], output: Path) -> None:
    run(rows("a", "b"))
    moments = finished_at(output)
    assert computed(run(rows("a", "b"), fresh=True)) == 2
    assert finished_at(output).keys() == moments.keys()
    assert all(moment > moments[key] for key, moment in finished_at(output).items())


def test_a_limit_raised_pays_for_the_new_rows_only(run: Callable[..., Summary]) -> None:
    names = [f"r{i}" for i in range(8)]
    assert computed(run(rows(*names), limit=3)) == 3
    assert computed(run(rows(*names), limit=5)) == 2
    assert computed(run(rows(*names))) == 3


def test_draws_stay_as_they_are_and_new_ones_are_others(
    run: Callable[..., Summary], output: Path
) -> None:
    hot = {"prompt": "once", "temperature": 1.5, "max_tokens": 12}
    run([hot, hot | {"n": 2}])
    first = texts(output)
    assert computed(run([hot, hot | {"n": 2}, hot])) == 1
    assert texts(output)[:3] == first
    assert len(set(texts(output))) == 4
    # A third choice of a row is computed with the two that are there.
    assert computed(run([hot, hot | {"n": 3}, hot])) == 1
    assert texts(output)[:3] == first


def test_failed_rows_are_tried_again_and_only_they(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = 311
    whole = LoadedModel.__call__

    def poisoned(self: LoadedModel, tokens: Any, cache: list[Any], given: Any = None) -> Any:
        if (tokens == poison).any().item():
            raise RuntimeError("boom")
        return whole(self, tokens, cache, given)

    bad = {"custom_id": "bad", "prompt": [40, poison, 41]}
    invalid = {"custom_id": "invalid", "prompt": ""}
    given = [*rows("a"), bad, *rows("b"), invalid]
    with monkeypatch.context() as patch:
        patch.setattr(LoadedModel, "__call__", poisoned)
        first = run(given)
    assert (first.status, first.exit_status) == ("completed_with_failures", 3)
    assert {code: error.count for code, error in first.errors.items()} == {
        "engine_error": 1,
        "invalid_request": 1,
    }
    failed = read_jsonl(output.with_name("out.errors.jsonl"))
    assert [line["custom_id"] for line in failed] == ["bad", "invalid"]
    assert "boom" in failed[0]["error"]["message"]
    assert [text is None for text in texts(output)] == [False, True, False, True]

    again = run(given)
    assert (computed(again), again.request_counts.failed) == (1, 1)
    mended = run([*given[:3], *rows("invalid")])
    assert (computed(mended), mended.exit_status) == (1, 0)
    assert None not in texts(output)
    assert not output.with_name("out.errors.jsonl").exists()


def test_an_output_that_is_not_ours_is_refused_untouched(
    run: Callable[..., Summary], output: Path, tmp_path: Path
) -> None:
    output.write_text('{"precious": 1}\n')
    with pytest.raises(UsageError, match="is not an output of batchrun"):
        run(rows("a"))
    assert output.read_text() == '{"precious": 1}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", output.name]

    assert computed(run(rows("a"), fresh=True)) == 1
    assert None not in texts(output)


def test_a_refused_output_leaves_an_earlier_journal(
    run: Callable[..., Summary], output: Path
) -> None:
    run(rows("a", "b"), max_time=0.001)
    journal = output.with_name(output.name + ".journal")
    assert journal.exists()
    output.write_text("precious")
    with pytest.raises(UsageError):
        run(rows("a", "b"))
    assert journal.exists()


def test_what_a_stopped_run_finished_is_not_computed_again(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"r{i}" for i in range(12)]
    with monkeypatch.context() as patch:
        _stop_after(5, patch)
        stopped = run(rows(*names), max_num_seqs=2, grace=0)
    assert (stopped.status, stopped.exit_status) == ("stopped", 4)
    assert stopped.request_counts.completed >= 5
    assert stopped.request_counts.not_run == 12 - stopped.request_counts.completed
    assert not output.exists()
    report = json.loads(output.with_name("out.report.json").read_text())
    assert (report["status"], report["exit_status"]) == ("stopped", 4)
    assert render(stopped).startswith("Stopped early: ")

    # The input may change before it goes on.
    summary = run([*rows("new"), *reversed(rows(*names))])
    assert summary.request_counts.reused == stopped.request_counts.completed
    assert computed(summary) == 13 - stopped.request_counts.completed
    assert len(texts(output)) == 13


def _stop_after(num_rows: int, patch: pytest.MonkeyPatch) -> None:
    """SIGINT as soon as so many rows have been recorded."""
    import signal

    from batchrun import runner

    record = runner.Ledger.record

    def interrupted(self: Any, finished: Any) -> None:
        record(self, finished)
        if self._meter.num_done >= num_rows:
            patch.setattr(runner.Ledger, "record", record)
            signal.raise_signal(signal.SIGINT)

    patch.setattr(runner.Ledger, "record", interrupted)


def test_an_earlier_output_stands_until_the_new_one_is_whole(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(rows("a", "b"))
    before = output.read_bytes()
    with monkeypatch.context() as patch:
        _stop_after(3, patch)
        stopped = run(rows("a", "b", *(f"r{i}" for i in range(9))), max_num_seqs=1, grace=0)
    assert stopped.exit_status == 4
    assert output.read_bytes() == before
    assert run(rows("a", "b", *(f"r{i}" for i in range(9)))).exit_status == 0
    assert len(texts(output)) == 11


def test_a_fresh_run_that_was_stopped_goes_on_as_a_fresh_one(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"r{i}" for i in range(9)]
    run(rows(*names))
    old = finished_at(output)
    with monkeypatch.context() as patch:
        _stop_after(4, patch)
        stopped = run(rows(*names), max_num_seqs=1, grace=0, fresh=True)
    assert stopped.exit_status == 4
    assert "Run it again without --fresh to go on from here" in render(stopped)

    summary = run(rows(*names))
    assert summary.request_counts.reused == stopped.request_counts.completed
    assert all(moment > old[key] for key, moment in finished_at(output).items())
    assert computed(run(rows(*names))) == 0


def test_an_output_of_one_format_continues_in_its_own(
    run: Callable[..., Summary], output: Path, tmp_path: Path
) -> None:
    """The name does not say the format: --format does, and must go on doing so."""
    odd = tmp_path / "answers.dat"
    kind = output.suffix[1:]
    (tmp_path / "in.jsonl").write_text("")
    path = write_jsonl(tmp_path / "data.jsonl", rows("a", "b"))
    model = run(rows("x")).model
    flags: dict[str, Any] = {"model": model, "max_tokens": 4, "quiet": True, "format": kind}
    assert computed(batchrun.run(path, output=odd, **flags)) == 2
    assert computed(batchrun.run(path, output=odd, **flags)) == 0
    flags["format"] = "jsonl" if kind == "parquet" else "parquet"
    with pytest.raises(UsageError, match="is not an output of batchrun in"):
        batchrun.run(path, output=odd, **flags)


def test_the_journal_goes_when_the_output_is_there(
    run: Callable[..., Summary], tmp_path: Path, output: Path
) -> None:
    run(rows("a"))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["in.jsonl", output.name, "out.report.html", "out.report.json"]


def test_a_damaged_journal_is_one_clear_error_and_fresh_mends_it(
    run: Callable[..., Summary], output: Path
) -> None:
    run(rows("a", "b"), max_time=0.001)
    journal = output.with_name(output.name + ".journal")
    Journal(journal).close()
    journal.write_bytes(b"junk" * 2000)
    with pytest.raises(batchrun.errors.RunError, match="--fresh"):
        run(rows("a", "b"))
    assert run(rows("a", "b"), fresh=True).exit_status == 0
