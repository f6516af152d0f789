from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from batchrun.errors import RowError, RunError, UsageError
from batchrun.records import Answer
from batchrun.sink import Counts, Journal, remove_journal
from tests.sink.builders import chat, completion, failure, has_answers, make_answer, make_row, names

ERROR = RowError("engine_failed", "the model failed", status=500)


def test_journal_is_for_its_owner_alone(journal: Journal) -> None:
    journal.add_row(chat(make_row()), "k")
    journal.commit()
    modes = {
        stat.S_IMODE(os.stat(journal.path.parent / name).st_mode)
        for name in names(journal.path.parent)
    }
    assert modes == {0o600}


def test_answers_outlive_runs_and_rows_do_not(journal: Journal) -> None:
    journal.add_row(chat(make_row()), "k")
    journal.add_answer(make_answer("k"))
    journal.occurrence("k")
    journal.commit()
    journal.close()
    again = Journal(journal.path)
    again.start()
    assert again.counts() == Counts(0, 0, 0)
    assert has_answers(again, "k", 1)
    assert again.occurrence("k") == 0
    again.close()


def test_rows_with_the_same_request_share_one_answer(journal: Journal) -> None:
    for index in range(3):
        journal.add_row(chat(make_row(index, custom_id="same")), "k")
    journal.add_answer(make_answer("k"))
    found = list(journal.results())
    assert [result.row.index for result in found] == [0, 1, 2]
    assert {result.answer for result in found} == {make_answer("k")}


def test_a_request_has_its_answers_only_with_all_choices(journal: Journal) -> None:
    journal.add_row(chat(make_row(), n=3), "k")
    for choice in (2, 0):
        journal.add_answer(make_answer("k", choice))
    assert not has_answers(journal, "k", 3)
    assert journal.counts() == Counts(1, 0, 0)
    assert list(journal.results()) == []
    journal.add_answer(make_answer("k", 1))
    assert has_answers(journal, "k", 3)
    assert [r.answer.choice for r in journal.results() if r.answer] == [0, 1, 2]


def test_a_row_gets_only_as_many_choices_as_it_asked_for(journal: Journal) -> None:
    journal.add_row(chat(make_row(), n=1), "k")
    for choice in range(3):
        journal.add_answer(make_answer("k", choice))
    assert [r.answer.choice for r in journal.results() if r.answer] == [0]


def test_failing_a_request_fails_all_its_rows_that_lack_answers(journal: Journal) -> None:
    journal.add_row(chat(make_row(0), n=1), "k")
    journal.add_row(chat(make_row(1), n=2), "k")
    journal.add_row(chat(make_row(2), n=2), "other")
    journal.add_row(chat(make_row(3), n=2), "k")
    journal.add_answer(make_answer("k", 0))
    failed = journal.fail_key("k", ERROR)
    assert [row.index for row in failed] == [1, 3]
    assert journal.fail_key("k", ERROR) == []
    assert journal.counts() == Counts(4, 1, 2)
    assert journal.counts().pending == 1
    first, second, third = journal.results()
    assert first.answer == make_answer("k", 0)
    for result in (second, third):
        assert result.answer is None
        assert result.error is not None
        assert (result.error.code, result.error.status) == ("engine_failed", 500)
        assert result.key == "k"


def test_a_failed_row_keeps_its_error_and_place(journal: Journal) -> None:
    row = make_row(4, custom_id="a", kept={"label": "x"})
    journal.add_failure(failure(row, 422, param="body.messages"))
    (result,) = journal.failures()
    assert [found.row for found in journal.results()] == [result.row] == [row]
    error = result.error
    assert error is not None
    assert (error.code, error.message) == ("invalid_request", "no messages")
    assert (error.status, error.param) == (422, "body.messages")
    assert result.key is None
    assert result.finished_at > 1.7e9


def test_chat_and_completion_rows_are_told_apart(journal: Journal) -> None:
    journal.add_row(chat(make_row(0)), "a")
    journal.add_row(completion(make_row(1)), "b")
    journal.add_answer(make_answer("a"))
    journal.add_answer(make_answer("b"))
    assert [result.is_chat for result in journal.results()] == [True, False]


@pytest.mark.parametrize("number", [1, 46, 47, 48, 124, 125, 1200])
def test_any_number_is_written(journal: Journal, number: int) -> None:
    for index in range(number):
        journal.add_row(chat(make_row(index)), f"k{index}")
        journal.add_answer(make_answer(f"k{index}"))
    keys = [f"k{index}" for index in range(number)]
    assert journal.finish_reasons(["other", *keys]) == {key: {0: "stop"} for key in keys}
    journal.commit()
    with closing(sqlite3.connect(journal.path)) as other:
        (written,) = other.execute("SELECT count(*) FROM rows JOIN answers USING (key)").fetchone()
    assert written == number


def test_the_first_answer_of_a_choice_stays(journal: Journal) -> None:
    journal.add_row(chat(make_row()), "k")
    journal.add_answer(make_answer("k", text="first"))
    journal.add_answer(make_answer("k", text="second"))
    assert journal.import_answers([make_answer("k", text="third"), make_answer("new")]) == 1
    (result,) = journal.results()
    assert result.answer is not None
    assert result.answer.text == "first"


def test_a_broken_import_takes_nothing_over(journal: Journal) -> None:
    def answers() -> Iterator[Answer]:
        yield make_answer("a")
        raise UsageError("not ours")

    with pytest.raises(UsageError):
        journal.import_answers(answers())
    assert not has_answers(journal, "a", 1)


def test_occurrences_count_rows_that_ask_for_the_same(journal: Journal) -> None:
    assert [journal.occurrence(key) for key in "aabaab"] == [0, 1, 0, 2, 3, 1]


def test_answered_keys_have_all_choices_up_to_the_last(journal: Journal) -> None:
    for key, choice in (("b", 1), ("c", 0), ("a", 1), ("a", 0)):
        journal.add_answer(make_answer(key, choice))
    assert list(journal.answered_keys()) == [("a", 2), ("c", 1)]


def test_stop_reason_keeps_its_type(journal: Journal) -> None:
    journal.add_row(chat(make_row(), n=3), "k")
    for choice, reason in enumerate((13, "13", None)):
        journal.add_answer(make_answer("k", choice, stop_reason=reason))
    assert [r.answer.stop_reason for r in journal.results() if r.answer] == [13, "13", None]


def test_lone_surrogates_do_not_stop_the_journal(journal: Journal) -> None:
    row = make_row(custom_id="\ud800", kept={"\udfff": ["\ud83d"]})
    journal.add_row(chat(row), "k")
    journal.add_answer(make_answer("k", text="a\udc00", logprobs=[{"token": "\ud800"}]))
    (result,) = journal.results()
    assert result.row.custom_id == "\ufffd"
    assert result.row.kept == {"\udfff": ["\ud83d"]}
    assert result.answer is not None
    assert result.answer.text == "a\ufffd"
    assert result.answer.logprobs == [{"token": "\ud800"}]
    bad = failure(make_row(1))
    bad.error.message = "bad \ud800"
    journal.add_failure(bad)
    assert [r.error.message for r in journal.failures() if r.error] == ["bad \ufffd"]


def test_results_stream_while_the_journal_is_written(journal: Journal) -> None:
    for index in range(500):
        journal.add_row(chat(make_row(index)), f"k{index}")
        journal.add_answer(make_answer(f"k{index}"))
    seen = []
    for result in journal.results():
        seen.append(result.row.index)
        has_answers(journal, "k1", 1)
        journal.commit()
    assert seen == list(range(500))


def test_a_file_that_is_no_journal_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "out.journal"
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(RunError, match=r"damaged.*--fresh"):
        Journal(path)
    assert path.read_bytes().startswith(b"not a database")


def test_a_database_of_another_make_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "out.journal"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(RunError, match="--fresh"):
        Journal(path)
    assert path.read_bytes() == before


def test_a_journal_of_another_version_is_refused_with_a_remedy(journal: Journal) -> None:
    journal.close()
    with sqlite3.connect(journal.path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(RunError, match=r"layout 99.*--fresh"):
        Journal(journal.path)


def test_a_damaged_page_is_an_error_of_the_run(journal: Journal) -> None:
    for index in range(2000):
        journal.add_row(chat(make_row(index)), f"k{index}")
        journal.add_answer(make_answer(f"k{index}"))
    journal.commit()
    journal.close()
    size = journal.path.stat().st_size
    with open(journal.path, "r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (size - 8192))
    again = Journal(journal.path)
    with pytest.raises(RunError, match="--fresh"):
        list(again.results())
    again.close()


def test_a_journal_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    path = tmp_path / "out.journal"
    path.mkdir()
    with pytest.raises(RunError, match="journal"):
        Journal(path)


def test_an_empty_file_is_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "out.journal"
    path.touch()
    journal = Journal(path)
    assert journal.counts() == Counts(0, 0, 0)
    journal.close()


def test_delete_leaves_nothing_behind(journal: Journal) -> None:
    journal.add_answer(make_answer("k"))
    journal.commit()
    journal.delete()
    assert names(journal.path.parent) == []


def test_an_unreadable_journal_can_be_removed(tmp_path: Path) -> None:
    for name in ("out.journal", "out.journal-wal", "out.journal-shm"):
        (tmp_path / name).write_text("junk")
    remove_journal(tmp_path / "out.journal")
    remove_journal(tmp_path / "out.journal")
    assert names(tmp_path) == []
