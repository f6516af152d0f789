"""Everything that belongs to one sequence while it is in the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from batchrun.engine.ballots import Ballot, Walk
from batchrun.engine.finishing import Ending, StopWatcher
from batchrun.engine.guiding import Guide
from batchrun.engine.waiting import PromptScores
from batchrun.records import Completion, Prompt, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one prompt, from admission to its last token.

    `kv_bytes` is the most its caches can grow to. `num_started` counts the decode steps begun
    for it; `token_ids` holds what has been read back, one fewer while a step is in flight.
    `guide` has taken these, if its answer follows a grammar. With a `walk` it is no answer, but
    follows that for the prompt's ballot; with a `scored_from` it is only there for the scores of
    its prompt's tokens from there on. Answers go to `gathering`, if their prompt asks for more.
    """

    prompt: Prompt
    choice: int
    kv_bytes: int = 0
    watcher: StopWatcher | None = None
    guide: Guide | None = None
    gathering: Ballot | PromptScores | None = None
    walk: Walk | None = None
    scored_from: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    num_started: int = 0
    cached_tokens: int = 0
    disk_tokens: int = 0
    ending: Ending | None = None
    admitted_at: float = field(default_factory=time.perf_counter)

    @property
    def max_tokens(self) -> int:
        return self.walk.num_steps if self.walk else self.prompt.sampling.max_tokens

    @property
    def is_live(self) -> bool:
        """Whether it wants another decode step, as far as the host knows."""
        return self.ending is None and self.num_started < self.max_tokens

    def restart(self) -> Sequence:
        """The same sequence before its first step."""
        watcher = self.watcher.restart() if self.watcher else None
        guide = self.guide.restart() if self.guide else None
        return Sequence(
            self.prompt,
            self.choice,
            self.kv_bytes,
            watcher,
            guide,
            self.gathering,
            self.walk,
            self.scored_from,
        )

    def completion(self, text: str, ending: Ending) -> Completion:
        return Completion(
            prompt=self.prompt,
            choice=self.choice,
            token_ids=self.token_ids,
            text=text,
            finish_reason=ending.finish_reason,
            stop_reason=ending.stop_reason,
            logprobs=self.logprobs if self.prompt.sampling.logprobs else None,
            cached_tokens=self.cached_tokens,
            disk_tokens=self.disk_tokens,
            seconds=time.perf_counter() - self.admitted_at,
        )
