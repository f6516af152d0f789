"""What becomes of sequences as their tokens are read: they go on, end, or fail."""

from __future__ import annotations

from collections.abc import Callable

from batchrun.engine.ballots import Ballot, Walk
from batchrun.engine.batch import Taken
from batchrun.engine.finishing import Ending, Finisher
from batchrun.engine.guiding import Guide
from batchrun.engine.row import Sequence
from batchrun.engine.scoring import ScoringPrefill
from batchrun.engine.waiting import PromptScores
from batchrun.errors import RowError
from batchrun.records import Completion, Failure


class Outcomes:
    """Collects what is finished, until it is handed out. `ended` is called for every sequence that
    has ended."""

    def __init__(self, finisher: Finisher, ended: Callable[[], None]):
        self._finisher = finisher
        self._ended = ended
        self._done: list[Completion | Failure] = []

    def hand_out(self) -> list[Completion | Failure]:
        """All that has been finished since the last time."""
        done, self._done = self._done, []
        return done

    def take(self, taken: Taken) -> None:
        """The next token of a sequence."""
        sequence = taken.sequence
        if sequence.walk:
            self._follow(sequence, sequence.walk, taken)
            return
        sequence.token_ids.append(taken.token_id)
        if taken.score is not None:
            sequence.logprobs.append(taken.score)
        if sequence.guide is None:
            self._end_if_over(sequence)
        else:
            self._guide(sequence, sequence.guide, taken.token_id)

    def finish(self, sequence: Sequence, ending: Ending) -> None:
        """An answer has ended."""
        sampling = sequence.prompt.sampling
        text, ending = self._finisher.finish(sequence.token_ids, sampling, ending)
        sequence.ending = ending
        completion = sequence.completion(text, ending)
        gathering = sequence.gathering
        self._done += gathering.answered(completion) if gathering else [completion]
        self._ended()

    def score(self, prefill: ScoringPrefill) -> None:
        """Sequences that were there for their scores have them."""
        for sequence, scores in zip(prefill.sequences, prefill.scores, strict=True):
            scored = sequence.gathering
            assert isinstance(scored, PromptScores)
            self._done += scored.scored(scores, self._emptied(sequence))

    def fail(self, sequence: Sequence, error: RowError) -> None:
        """A sequence cannot be done, and so its prompt neither."""
        self._done.append(Failure(sequence.prompt.row, error, sequence.prompt.key))

    def _follow(self, sequence: Sequence, walk: Walk, taken: Taken) -> None:
        """The next step of a sequence that is led along its prompt's choices."""
        ballot = sequence.gathering
        assert isinstance(ballot, Ballot)
        ballot.count(walk, len(sequence.token_ids), taken.told)
        sequence.token_ids.append(taken.token_id)
        if len(sequence.token_ids) == walk.num_steps:
            self._done += ballot.walked(self._emptied(sequence))

    def _emptied(self, sequence: Sequence) -> Completion:
        """What a sequence that writes nothing took, as it has come to its end."""
        sequence.ending = Ending("stop")
        self._ended()
        return sequence.completion("", sequence.ending)

    def _guide(self, sequence: Sequence, guide: Guide, token_id: int) -> None:
        guide.take(token_id)
        if guide.error is None:
            self._end_if_over(sequence, is_whole=guide.is_done)
            return
        message = f"the answer's grammar cannot be followed any further: {guide.error}"
        sequence.ending = Ending("stop")
        self.fail(sequence, RowError("grammar_failed", message, status=500))
        self._ended()

    def _end_if_over(self, sequence: Sequence, *, is_whole: bool = False) -> None:
        ending = self._finisher.ending(
            sequence.token_ids, sequence.prompt.sampling, sequence.watcher, is_whole=is_whole
        )
        if ending:
            self.finish(sequence, ending)
