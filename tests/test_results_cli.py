"""batchrun show and batchrun export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from batchrun.cli import main
from batchrun.sink import Journal, write_output
from tests.sink.builders import chat, failure, make_answer, make_row


@pytest.fixture(autouse=True)
def _output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows in out.parquet, the second failed."""
    monkeypatch.chdir(tmp_path)
    journal = Journal(Path("journal"))
    journal.add_row(chat(make_row(0, custom_id="a", kept={"id": 7})), "k0")
    journal.add_answer(make_answer("k0", text="two\nlines \x1b[31m"))
    journal.add_failure(failure(make_row(1, custom_id="b")))
    journal.add_row(chat(make_row(2, custom_id="c")), "k2")
    journal.add_answer(make_answer("k2"))
    journal.commit()
    write_output(journal, Path("out.parquet"), "parquet")
    write_output(journal, Path("judged.jsonl"), "jsonl", correct=lambda each: each.row.index == 2)
    journal.close()


def show(*flags: str, color: bool = False, output: str = "out.parquet") -> Result:
    return CliRunner().invoke(main, ["show", output, *flags], color=color)


def rows(result: Result) -> list[int]:
    return [json.loads(line)["row"] for line in result.stdout.splitlines()]


def test_a_pipe_gets_a_line_of_json_for_each() -> None:
    first = json.loads(show().stdout.splitlines()[0])

    assert (first["row"], first["custom_id"], first["input"]) == (0, "a", {"id": 7})
    assert first["text"].startswith("two\nlines")
    assert first["finished_at"].startswith("2025-07-20T")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), [0, 1, 2]),
        (("--failed",), [1]),
        (("--row", "0", "--row", "2"), [0, 2]),
        (("--custom-id", "c"), [2]),
        (("--custom-id", "c", "--failed"), []),
        (("--limit", "2"), [0, 1]),
    ],
)
def test_rows_are_chosen(flags: tuple[str, ...], expected: list[int]) -> None:
    assert rows(show(*flags)) == expected


def test_a_person_gets_text_without_what_a_terminal_obeys() -> None:
    assert show("--form", "text", "--row", "0", "--row", "1").stdout == (
        "row 0 · a · stop · 7 + 3 tokens · 0.25 s\n  id: 7\ntwo\nlines \ufffd[31m\n\n"
        "row 1 · b · FAILED\ninvalid_request: no messages\n\n"
    )


def test_rows_of_requests_are_no_output(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hello"}\n')
    done = show(output="in.jsonl")

    assert done.exit_code == 2
    assert "in.jsonl: cannot be read as an output of batchrun: it has no 'row'" in done.stderr


def test_wrong_answers_alone() -> None:
    assert rows(show("--wrong", output="judged.jsonl")) == [0]


def test_wrong_answers_of_an_output_that_nobody_judged() -> None:
    done = show("--wrong")

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: out.parquet: says of no answer whether it is right")


def test_a_person_sees_what_was_asked_about_an_answer() -> None:
    journal = Journal(Path("scored"))
    scored = make_answer("k", logprob=-1.25, is_greedy=False, choice_probs={"no": 0.125, "so": 0.5})
    journal.add_row(chat(make_row(0, kept={"label": "so"})), "k")
    journal.add_answer(scored)
    journal.commit()
    write_output(journal, Path("scored.parquet"), "parquet", correct=lambda each: True)
    journal.close()

    assert show("--form", "text", output="scored.parquet").stdout == (
        "row 0 · stop · 7 + 3 tokens · 0.25 s · correct\n  label: so\nanswer k 0\n"
        "choices: so 50.0 %, no 12.5 %\nlog-probability: -1.2500, not greedy\n\n"
    )


def test_no_color_in_the_environment_turns_colors_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in show("--form", "text", color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in show("--form", "text", color=True).stdout


def test_export_says_what_it_wrote() -> None:
    done = CliRunner().invoke(main, ["export", "out.parquet", "-o", "out.csv"])

    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "Written: out.csv, 3 answers and failures\n"
    assert Path("out.csv").read_text().startswith("row,custom_id,choice,text,")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("out.parquet", "is the output itself"),
        ("out.txt", "end its name in .parquet, .jsonl or .csv"),
        ("no/out.csv", "no/out.csv: there is no folder no; make it with: mkdir -p no"),
        ("folder.csv", "folder.csv: is there and is no file; move it away"),
    ],
)
def test_a_wrong_target_is_one_line(target: str, message: str) -> None:
    Path("folder.csv").mkdir()
    done = CliRunner().invoke(main, ["export", "out.parquet", "-o", target])

    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
def test_an_output_is_known_by_what_it_holds_where_its_name_says_nothing(name: str) -> None:
    expected = show().stdout
    CliRunner().invoke(main, ["export", "out.parquet", "-o", "out.jsonl"])
    Path(name).rename("named")

    assert rows(show(output="named")) == [json.loads(line)["row"] for line in expected.splitlines()]
