"""What becomes of every row: computed, shared, reused or failed; and the books always balance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.errors import RowError, RunError
from batchrun.ledger import Ledger
from batchrun.records import Completion, Failure, Prompt, Request, Row, Sampling, TokenLogprob
from batchrun.report.meter import Meter
from batchrun.sink import Journal


class Spelling:
    """A tokenizer whose tokens are the letters of the alphabet."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + token) for token in token_ids)


class Books:
    """A ledger on a journal of its own, as one run has it."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path)
        self.journal.start()
        self.meter = Meter()
        self.ledger = Ledger(self.journal, self.meter, model="tiny", decoder=Spelling())

    def admit(self, *rows: Prompt | Failure | None) -> list[Prompt]:
        return [item for item in self.ledger.admit(rows, never) if item is not None]

    def record(self, *finished: Completion | Failure) -> None:
        self.ledger.record(finished)

    def figures(self) -> tuple[int, int, int]:
        return self.meter.num_completed, self.meter.num_reused, self.meter.num_failed

    def results(self) -> list[tuple[int, int | None, str | None]]:
        """Row, choice, and text or error code of every result."""
        return [
            (
                result.row.index,
                None if result.answer is None else result.answer.choice,
                result.error.code if result.answer is None and result.error else _text(result),
            )
            for result in self.journal.results()
        ]


def never() -> bool:
    return False


def _text(result: Any) -> str | None:
    return None if result.answer is None else result.answer.text


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    books = Books(tmp_path / "out.journal")
    yield books
    books.journal.close()


def prompt(index: int, key: str = "k", **sampling: Any) -> Prompt:
    request = Request(Row(index, "in.jsonl", index + 1), Sampling(**sampling), prompt=[1, 2, 3])
    return Prompt(request, [1, 2, 3], key)


def done(prompt: Prompt, choice: int = 0, **fields: Any) -> Completion:
    values: dict[str, Any] = {"text": f"{prompt.key}/{choice}", "finish_reason": "stop"}
    return Completion(prompt, choice, [4, 5], **(values | fields))


def broken(prompt: Prompt) -> Failure:
    return Failure(prompt.row, RowError("engine_error", "boom", status=500), prompt.key)


def test_rows_that_ask_the_same_share_one_answer(books: Books) -> None:
    first, other = books.admit(prompt(0), prompt(1), prompt(2, "other"), prompt(3))
    assert (first.row.index, other.row.index) == (0, 2)
    books.record(done(first), done(other))
    assert books.results() == [(0, 0, "k/0"), (1, 0, "k/0"), (2, 0, "other/0"), (3, 0, "k/0")]
    assert books.figures() == (2, 2, 0)
    assert books.ledger.is_complete


def test_a_row_that_comes_after_the_answer_takes_it_too(books: Books) -> None:
    rows = books.ledger.admit([prompt(0), None, prompt(1)], never)
    first = next(rows)
    assert first is not None
    books.record(done(first))
    assert list(rows) == [None]
    assert books.figures() == (1, 1, 0)
    assert books.ledger.is_complete


def test_tokens_count_once_however_many_rows_share_them(books: Books) -> None:
    first, *_ = books.admit(prompt(0, n=2), prompt(1, n=2))
    books.record(done(first, 0), done(first, 1, cached_tokens=2))
    assert (books.meter.prompt_tokens, books.meter.cached_tokens) == (6, 2)
    assert books.meter.completion_tokens == 4
    assert books.meter.finish_reasons == {"stop": 4}


def test_repeated_draws_without_a_seed_are_computed_each(books: Books) -> None:
    hot = [prompt(i, temperature=1.0) for i in range(3)]
    admitted = books.admit(*hot)
    assert [item.row.index for item in admitted] == [0, 1, 2]
    assert len({item.key for item in admitted}) == 3
    books.record(*(done(item) for item in admitted))
    assert books.figures() == (3, 0, 0)


def test_repeated_draws_are_reused_one_by_one_by_the_next_run(tmp_path: Path) -> None:
    hot = [prompt(i, temperature=1.0) for i in range(3)]
    first = Books(tmp_path / "out.journal")
    first.record(*map(done, first.admit(*hot)))
    texts = first.results()
    first.journal.close()

    again = Books(tmp_path / "out.journal")
    (new,) = again.admit(*hot, prompt(3, temperature=1.0))
    assert new.row.index == 3
    again.record(done(new))
    assert again.results()[:3] == texts
    assert again.figures() == (1, 3, 0)
    again.journal.close()


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 2.0, "top_k": 1}]
)
def test_repeated_rows_without_chance_share(books: Books, sampling: dict[str, Any]) -> None:
    assert len(books.admit(prompt(0, **sampling), prompt(1, **sampling))) == 1


def test_one_key_with_different_n_gives_each_row_its_number(books: Books) -> None:
    one, three = books.admit(prompt(0, n=1), prompt(1, n=3), prompt(2, n=1))
    assert (one.sampling.n, three.sampling.n) == (1, 3)
    books.record(done(three, 2), done(one, 0), done(three, 0))
    assert not books.ledger.is_complete
    books.record(done(three, 1))
    assert books.results() == [
        *[(0, 0, "k/0")],
        *[(1, 0, "k/0"), (1, 1, "k/1"), (1, 2, "k/2")],
        *[(2, 0, "k/0")],
    ]
    assert books.figures() == (2, 1, 0)
    assert books.ledger.is_complete


def test_more_choices_than_an_earlier_row_had_are_computed(books: Books) -> None:
    (one,) = books.admit(prompt(0, n=1))
    books.record(done(one))
    (three,) = books.admit(prompt(1, n=3))
    books.record(*(done(three, choice) for choice in range(3)))
    assert books.figures() == (2, 0, 0)


def test_a_choice_that_fails_fails_its_row_once(books: Books) -> None:
    (row,) = books.admit(prompt(0, n=3))
    books.record(done(row, 0), broken(row), broken(row))
    books.record(done(row, 2))
    assert books.results() == [(0, None, "engine_error")]
    assert books.figures() == (0, 0, 1)
    assert books.ledger.is_complete


def test_a_row_that_fails_takes_along_those_that_wait_for_it(books: Books) -> None:
    first, other = books.admit(prompt(0), prompt(1), prompt(2, "other"), prompt(3))
    books.record(broken(first))
    books.record(done(other))
    assert books.results() == [
        *[(0, None, "engine_error"), (1, None, "engine_error")],
        *[(2, 0, "other/0"), (3, None, "engine_error")],
    ]
    assert books.figures() == (1, 0, 3)
    assert books.meter.errors["engine_error"].row == "in.jsonl:1"
    assert books.ledger.is_complete


def test_a_row_that_had_its_answer_is_not_failed_by_a_later_one(books: Books) -> None:
    one, three = books.admit(prompt(0, n=1), prompt(1, n=3))
    books.record(done(one))
    books.record(broken(three))
    assert books.results() == [(0, 0, "k/0"), (1, None, "engine_error")]
    assert books.figures() == (1, 0, 1)
    assert books.ledger.is_complete


def test_a_row_tried_anew_after_a_failure_waits_for_all_its_choices(books: Books) -> None:
    rows = books.ledger.admit([prompt(0, n=3), None, prompt(1, n=3)], never)
    first = next(rows)
    assert first is not None
    books.record(broken(first))
    assert next(rows) is None
    second = next(rows)
    assert second is not None
    assert list(rows) == []
    # The first row's other choices were running all the while.
    books.record(done(first, 0), done(first, 2), done(second, 0))
    assert not books.ledger.is_complete
    books.record(done(second, 1))
    assert books.ledger.is_complete
    assert [item[:2] for item in books.results()] == [(0, None), (1, 0), (1, 1), (1, 2)]
    assert books.figures() == (1, 0, 1)


def test_a_row_that_failed_before_it_had_a_prompt_is_booked(books: Books) -> None:
    bad = Failure(Row(0, "in.jsonl", 1), RowError("invalid_json_line", "no JSON"))
    assert books.admit(bad) == []
    assert books.figures() == (0, 0, 1)
    assert books.ledger.is_complete


def test_no_row_is_booked_once_it_is_enough(books: Books) -> None:
    bad = [Failure(Row(i, "in.jsonl", i + 1), RowError("no_row", "bad")) for i in range(5)]
    rows = books.ledger.admit([*bad, prompt(5)], lambda: books.meter.num_failed == 2)
    assert list(rows) == []
    assert books.figures() == (0, 0, 2)
    assert not books.ledger.is_complete


def test_not_ready_is_passed_on_and_is_no_row(books: Books) -> None:
    assert list(books.ledger.admit([None, prompt(0), None], never)) == [None, prompt(0), None]
    assert books.meter.total == 1


def test_it_is_not_complete_before_the_input_was_read_to_its_end(books: Books) -> None:
    rows = books.ledger.admit([prompt(0), prompt(1, "other")], never)
    first = next(rows)
    assert first is not None
    books.record(done(first))
    assert not books.ledger.is_complete
    assert books.meter.total is None


def test_an_input_that_breaks_off_ends_the_rows_and_is_never_complete(books: Books) -> None:
    def broken() -> Iterator[Prompt]:
        yield prompt(0)
        raise RunError("in.jsonl: cannot be read to its end")

    first, *others = books.ledger.admit(broken(), never)
    assert first is not None
    books.record(done(first))
    assert others == []
    assert str(books.ledger.read_error) == "in.jsonl: cannot be read to its end"
    assert not books.ledger.is_complete
    assert books.meter.total is None


def test_what_was_recorded_outlives_the_process(books: Books, tmp_path: Path) -> None:
    first, other = books.admit(prompt(0), prompt(1, "other"))
    books.record(done(first))
    # Another connection sees only what was committed.
    witness = Books.__new__(Books)
    witness.journal = Journal(tmp_path / "out.journal")
    assert witness.journal.finish_reasons(["k", other.key]) == {"k": {0: "stop"}}
    witness.journal.close()


def test_the_next_run_reuses_answers_and_tries_failures_again(tmp_path: Path) -> None:
    first = Books(tmp_path / "out.journal")
    good, bad = first.admit(prompt(0), prompt(1, "bad"))
    first.record(done(good, finish_reason="length"), broken(bad))
    first.journal.close()

    again = Books(tmp_path / "out.journal")
    (tried,) = again.admit(prompt(0, "bad"), prompt(1), prompt(2, "k"))
    assert tried.key == "bad"
    again.record(done(tried))
    assert again.results() == [(0, 0, "bad/0"), (1, 0, "k/0"), (2, 0, "k/0")]
    assert again.figures() == (1, 2, 0)
    assert again.meter.num_truncated == 2
    again.journal.close()


def test_logprobs_are_openais(books: Books) -> None:
    (row,) = books.admit(prompt(0, logprobs=True))
    scores = [TokenLogprob(0, -0.5, top=((0, -0.5), (1, -1.5)))]
    books.record(done(row, logprobs=scores))
    (result,) = books.journal.results()
    assert result.answer is not None
    assert result.answer.logprobs == [
        {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [
                {"token": "a", "logprob": -0.5, "bytes": [97]},
                {"token": "b", "logprob": -1.5, "bytes": [98]},
            ],
        }
    ]


class _Engine:
    """Finishes what was admitted in any order that `data` draws; some choices fail."""

    def __init__(self, books: Books, data: st.DataObject) -> None:
        self._books = books
        self._data = data
        self._running: list[tuple[Prompt, int]] = []

    def run(self, rows: Iterator[Prompt | None]) -> None:
        while True:
            while self._running and self._data.draw(st.booleans(), label="finish one"):
                self._finish_one()
            item = next(rows, "end")
            if item == "end":
                break
            if isinstance(item, Prompt):
                self._running += [(item, choice) for choice in range(item.sampling.n)]
        while self._running:
            self._finish_one()

    def _finish_one(self) -> None:
        place = self._data.draw(st.integers(0, len(self._running) - 1), label="which")
        row, choice = self._running.pop(place)
        fails = self._data.draw(st.integers(0, 9), label="fails") == 0
        self._books.record(broken(row) if fails else done(row, choice))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    asked=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from([0.0, 1.0]))
        | st.none(),
        max_size=12,
    ),
    data=st.data(),
)
def test_every_row_ends_in_exactly_one_result(
    tmp_path_factory: pytest.TempPathFactory, asked: list[Any], data: st.DataObject
) -> None:
    books = Books(tmp_path_factory.mktemp("books") / "out.journal")
    rows: list[Prompt | Failure] = [
        Failure(Row(i, "in.jsonl", i + 1), RowError("invalid_request", "bad"))
        if item is None
        else prompt(i, f"{item[0]}{item[2]}", n=item[1], temperature=item[2])
        for i, item in enumerate(asked)
    ]
    _Engine(books, data).run(books.ledger.admit(rows, never))
    assert books.ledger.is_complete
    assert sum(books.figures()) == len(rows)
    counts = books.journal.counts()
    assert (counts.rows, counts.pending, counts.failed) == (len(rows), 0, books.meter.num_failed)
    for row in rows:
        mine = [item for item in books.results() if item[0] == row.row.index]
        if mine[0][1] is not None:
            assert isinstance(row, Prompt)
            assert [choice for _, choice, _ in mine] == list(range(row.sampling.n))
        else:
            assert len(mine) == 1
    books.journal.close()
