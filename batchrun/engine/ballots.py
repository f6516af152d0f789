"""How likely each of a prompt's choices is: sequences that are led along their tokens.

All choices' tokens form a tree. A `Walk` leads one sequence down it and asks, on the way, how
likely the tokens are that go on from there; what several choices have in common is asked once. A
`Ballot` counts what the walks are told. Knows nothing of batches or devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from batchrun.records import Choice, Completion, Prompt

# One token of a choice; or all those that end an answer, as any of them will do.
Group = tuple[int, ...]
Path = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """One way down: the prompt is followed by `path`. Before the first of its tokens, and after
    each, the probabilities of the groups in `asked` are wanted, if any."""

    path: Path
    asked: tuple[tuple[Group, ...], ...]

    @property
    def num_steps(self) -> int:
        return len(self.asked)

    def token_at(self, step: int) -> int:
        """What the sequence goes on with after `step`; after its last it does not matter."""
        return self.path[step][0] if step < len(self.path) else 0

    def asked_at(self, step: int) -> tuple[Group, ...]:
        return self.asked[step] if step < len(self.asked) else ()


class Ballot:
    """The choices of one prompt. `ends` are the tokens that end an answer; they count where one
    choice begins another, as only the end then tells which of the two an answer is.

    Answers wait here until it is known how likely each choice is. Where none is written, as the
    request only wants the label, the likeliest choice is the answer.
    """

    def __init__(self, prompt: Prompt, ends: Iterable[int]):
        self._prompt = prompt
        end = tuple(sorted(ends)) if _overlap(prompt.choices) else ()
        self._paths = [_path(choice, end) for choice in prompt.choices]
        self.walks = _walks(self._paths)
        self._num_wanted = sum(len(groups) for walk in self.walks for groups in walk.asked)
        self._logprobs: dict[Path, float] = {}
        self._answers: list[Completion] = []
        self._walked: list[Completion] = []

    def count(self, walk: Walk, step: int, logprobs: Iterable[float]) -> None:
        """Take in what `walk` was told at one of its steps."""
        for group, logprob in zip(walk.asked_at(step), logprobs, strict=True):
            self._logprobs[*walk.path[:step], group] = logprob

    def answered(self, completion: Completion) -> list[Completion]:
        """An answer is written. Returns what can be handed out by now."""
        self._answers.append(completion)
        return self._release()

    def walked(self, completion: Completion) -> list[Completion]:
        """A walk has come to its end. Returns what can be handed out by now."""
        self._walked.append(completion)
        return self._release()

    def _release(self) -> list[Completion]:
        if len(self._logprobs) < self._num_wanted:
            return []
        shares = self._shares()
        done = self._labels(shares) if self._prompt.request.label == "only" else self._answers
        self._answers = []
        return [replace(completion, choice_probs=shares) for completion in done]

    def _shares(self) -> tuple[float, ...]:
        """The probability of each choice, given that the answer is one of them."""
        totals = [math.fsum(self._logprobs[part] for part in _parts(p)) for p in self._paths]
        most = max(totals)
        weights = [math.exp(total - most) for total in totals]
        return tuple(weight / math.fsum(weights) for weight in weights)

    def _labels(self, shares: tuple[float, ...]) -> Iterator[Completion]:
        best = self._prompt.choices[shares.index(max(shares))]
        for number in range(self._prompt.sampling.n):
            yield Completion(
                prompt=self._prompt,
                choice=number,
                token_ids=list(best.token_ids),
                text=best.text,
                finish_reason="stop",
                cached_tokens=min(walked.cached_tokens for walked in self._walked),
                disk_tokens=sum(walked.disk_tokens for walked in self._walked),
                seconds=max(walked.seconds for walked in self._walked),
            )


def _path(choice: Choice, end: Group) -> Path:
    tokens = tuple((token,) for token in choice.token_ids)
    return (*tokens, end) if end else tokens


def _parts(path: Path) -> Iterator[Path]:
    """The path up to each of its groups."""
    return (path[: length + 1] for length in range(len(path)))


def _overlap(choices: tuple[Choice, ...]) -> bool:
    """Whether one choice begins another."""
    texts = sorted(choice.text for choice in choices)
    # In sorted order what a text begins comes right after it.
    return any(later.startswith(earlier) for earlier, later in pairwise(texts))


def _walks(paths: list[Path]) -> list[Walk]:
    """As few walks as reach every place from which a path goes on."""
    following: dict[Path, dict[Group, None]] = {}
    for part in (part for path in paths for part in _parts(path)):
        following.setdefault(part[:-1], {})[part[-1]] = None
    inner = {place[:-1] for place in following if place}
    walks = []
    for place in [place for place in following if place not in inner]:
        places = [place[:length] for length in range(len(place) + 1)]
        asked = tuple(tuple(following.pop(passed, ())) for passed in places)
        walks.append(Walk(place, asked))
    return walks
