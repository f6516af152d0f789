"""What becomes of every row: asked, reused, answered or failed, in the journal and the meter.

Rows that ask the same share one answer: the first computes it, the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from batchrun.answers import AnswerReader
from batchrun.engine.finishing import Decoder
from batchrun.errors import RunError
from batchrun.prepare import with_occurrence
from batchrun.records import Completion, Dialect, Failure, Prompt
from batchrun.report.meter import Meter
from batchrun.sink import Journal

# Rows booked together, where so many are ready: the journal is asked once for all of them.
_AT_ONCE = 32


@dataclass(slots=True)
class _Asked:
    """A prompt that is being answered, how many rows want it, and its choices so far."""

    num_rows: int = 1
    choices: dict[int, Completion] = field(default_factory=dict)


class Ledger:
    """Books for one run. `model` is the name that answers carry."""

    def __init__(
        self,
        journal: Journal,
        meter: Meter,
        *,
        model: str,
        decoder: Decoder,
        dialect: Dialect | None = None,
        ends: frozenset[int] = frozenset(),
    ):
        self._journal = journal
        self._meter = meter
        self._reader = AnswerReader(model, decoder, dialect, ends)
        self._open: dict[str, dict[int, _Asked]] = {}  # by key, then by number of choices
        self._read_all = False
        self.read_error: RunError | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every row of the input has an answer or a failure."""
        return self._read_all and not self._open

    def admit(
        self, rows: Iterable[Prompt | Failure | None], is_enough: Callable[[], bool]
    ) -> Iterator[Prompt | None]:
        """Book each row as it comes, until it `is_enough`; yield the prompts whose answers have to
        be computed.

        Where `rows` raise RunError they end there, and it is kept as `read_error`: what was read
        before it is answered first.
        """
        num_rows = 0
        for ready in _together(self._readable(rows)):
            if is_enough():
                return
            num_rows += len(ready)
            yield from self.book(ready) if ready else [None]
        if self.read_error is None:
            self.read_all(num_rows)

    def book(self, rows: Sequence[Prompt | Failure]) -> list[Prompt]:
        """Book rows; the prompts among them whose answers have to be computed."""
        prompts = []
        for row in rows:
            if isinstance(row, Failure):
                self._journal.add_failure(row)
                self._meter.failed(row.error, row.row)
            else:
                prompts.append(self._asked(row))
        reasons = self._journal.finish_reasons([prompt.key for prompt in prompts])
        return [prompt for prompt in prompts if self._is_new(prompt, reasons.get(prompt.key, {}))]

    def read_all(self, num_rows: int) -> None:
        """The input has been read to its end, and had so many rows."""
        self._meter.num_rows = num_rows
        self._read_all = True

    def record(self, finished: Iterable[Completion | Failure]) -> None:
        """Book what the engine finished; it is safe once this returns."""
        for item in finished:
            if isinstance(item, Failure):
                self._fail(item)
            else:
                self._answer(item)
        self._journal.commit()

    def _readable(
        self, rows: Iterable[Prompt | Failure | None]
    ) -> Iterator[Prompt | Failure | None]:
        try:
            yield from rows
        except RunError as error:
            self.read_error = error

    def _asked(self, prompt: Prompt) -> Prompt:
        if not prompt.sampling.has_one_answer:
            prompt = with_occurrence(prompt, self._occurrence(prompt))
        self._journal.add_row(prompt.request, prompt.key)
        self._meter.asked(prompt.request)
        return prompt

    def _is_new(self, prompt: Prompt, reasons: dict[int, str]) -> bool:
        """Whether its answer is neither there, as `reasons` of its choices tell, nor on the way."""
        n = prompt.sampling.n
        if asked := self._open.get(prompt.key, {}).get(n):
            asked.num_rows += 1
            return False
        if ended := _of_all(reasons, n):
            self._meter.reused(*ended)
            return False
        self._open.setdefault(prompt.key, {})[n] = _Asked()
        return True

    def _occurrence(self, prompt: Prompt) -> int:
        drawn = prompt.request.drawn
        return self._journal.occurrence(prompt.key) if drawn is None else drawn

    def _answer(self, completion: Completion) -> None:
        self._journal.add_answer(self._reader.read(completion))
        self._meter.recorder.finished(completion)
        key, n = completion.prompt.key, completion.prompt.sampling.n
        asked = self._open.get(key, {}).get(n)
        if asked is None:
            return  # another choice of it has failed
        # By number: a choice may come twice where a row is tried again after another's failure.
        asked.choices[completion.choice] = completion
        if len(asked.choices) < n:
            return
        del self._open[key][n]
        if not self._open[key]:
            del self._open[key]
        choices = asked.choices.values()
        reasons = [choice.finish_reason for choice in choices]
        self._meter.completed(
            n * completion.prompt.num_tokens,
            sum(choice.cached_tokens for choice in choices),
            sum(len(choice.token_ids) for choice in choices),
            *reasons,
        )
        for _ in range(asked.num_rows - 1):
            self._meter.reused(*reasons)

    def _fail(self, failure: Failure) -> None:
        if failure.key is None:
            return
        for row in self._journal.fail_key(failure.key, failure.error):
            self._meter.failed(failure.error, row)
        known = self._journal.finish_reasons([failure.key]).get(failure.key, {})
        for n, asked in self._open.pop(failure.key, {}).items():
            if ended := _of_all(known, n):  # the choices of another row have answered these
                for _ in range(asked.num_rows):
                    self._meter.reused(*ended)


def _of_all(reasons: dict[int, str], n: int) -> list[str]:
    """The reasons of choices 0 to n - 1; none where one of these is missing."""
    ended = [reasons[choice] for choice in range(n) if choice in reasons]
    return ended if len(ended) == n else []


def _together(rows: Iterable[Prompt | Failure | None]) -> Iterator[list[Prompt | Failure]]:
    """`rows` in lists of those that are ready at once, and an empty one for None. A failure ends
    its list, as it may be one too many."""
    ready: list[Prompt | Failure] = []
    for row in rows:
        if row is not None:
            ready.append(row)
        if ready and (row is None or isinstance(row, Failure) or len(ready) == _AT_ONCE):
            yield ready
            ready = []
        if row is None:
            yield []
    if ready:
        yield ready
