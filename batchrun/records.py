"""The records that flow from step to step, in the order a row meets them.

Row -> Request -> Prompt -> Completion -> Result, with Failure in place of any of them for a row
that cannot be done. A step never changes what an earlier one made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from batchrun.errors import RowError

if TYPE_CHECKING:
    import numpy.typing as npt

FinishReason = Literal["stop", "length"]
Label = Literal["also", "only"]
ShapeKind = Literal["json", "regex", "choice", "lark"]


@dataclass(frozen=True, slots=True)
class Row:
    """Which row of the input something belongs to.

    `index` counts from 0 over the whole input; `line` from 1 within `file`, in lines for text
    files and in rows for tables. `kept` holds the input columns to carry to the output.
    """

    index: int
    file: str
    line: int
    custom_id: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        name = f" (custom_id {self.custom_id})" if self.custom_id is not None else ""
        return f"{self.file}:{self.line}{name}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that has no answer, and why. `key` is its prompt's, if it got as far as having one:
    then every row that asks the same shares the failure."""

    row: Row
    error: RowError
    key: str | None = None

    def __post_init__(self) -> None:
        # It may wait for long, and the frames that raised it hold all they worked on.
        self.error.__traceback__ = self.error.__cause__ = self.error.__context__ = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one row's tokens are chosen and when they end; every field is the row's own.

    `top_k` 0, `top_p` 1 and `min_p` 0 are off, as are penalties of 0 (presence, frequency) and
    1 (repetition). `top_logprobs` is read only where `logprobs` is true.
    """

    max_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken, so that no randomness enters."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def has_one_answer(self) -> bool:
        """Whether the same request again asks for the same answer, and not for another draw."""
        return self.is_greedy or self.seed is not None


@dataclass(frozen=True, slots=True)
class Shape:
    """What an answer's text must be.

    `source` is a JSON schema, a regular expression, a JSON list of strings to choose from, or a
    grammar in Lark's notation. `param` is the dotted path of the field that it came from.
    """

    kind: ShapeKind
    source: str
    param: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model marks the parts of its answers.

    `think_start` and `think_end` are the tokens around a block of reasoning, if it has those.
    `parse_calls(text, tools)` reads what stands between `call_start` and `call_end` (which may be
    empty: the rest) as one call or a list of calls, each with `name` and `arguments`; it raises
    anything. `parser` is its name. `call_tokens` are the two where each is one token.
    """

    think_start: tuple[int, ...] = ()
    think_end: tuple[int, ...] = ()
    call_start: str = ""
    call_end: str = ""
    parse_calls: Callable[[str, Any], Any] | None = None
    parser: str | None = None
    call_tokens: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """That an answer may begin with reasoning, between the tokens `start` and `end`.

    `is_open` says that the prompt has begun it already. After `budget` of its tokens it is closed.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    is_open: bool = False
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the texts that an answer can be, as the model's tokens."""

    text: str
    token_ids: tuple[int, ...]


class Grammar(Protocol):
    """A compiled shape, which any number of answers can follow."""

    @property
    def shape(self) -> Shape:
        """What it was compiled from."""

    @property
    def vocab_size(self) -> int:
        """How many token ids its matchers know."""

    def begin(self) -> Any:
        """A matcher of llguidance before an answer's first token."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a row asks for. Exactly one of `messages` (chat) and `prompt` (completion) is set;
    a completion's prompt may be token ids. The answer has `shape`, if that is not None.

    `label` asks how likely each of the shape's choices is: also, beside an answer, or only, and
    then the likeliest is the answer. With a `continuation` there is no answer: only how likely that
    is after the prompt. `prompt_logprobs` asks for the log-probabilities of the prompt's own
    tokens, and of so many of the likeliest at their places; `echo` repeats the prompt before the
    answer. `tool_choice` is auto, required or the name of a tool.
    `model` is what the row calls the model, which decides nothing. `drawn` counts the rows before
    it in the whole input that ask for a draw of the same; None where only rows of it are seen.
    `is_blank` says that it was made of data in which there was nothing.
    """

    row: Row
    sampling: Sampling
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    shape: Shape | None = None
    label: Label | None = None
    continuation: str | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    model: str | None = None
    drawn: int | None = None
    is_blank: bool = False

    @property
    def is_chat(self) -> bool:
        return self.messages is not None


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """An image or a video as a model takes it; several where its processor does not keep them
    apart.

    `digest` (32 bytes) is of the decoded pixels with their size, and of how they were processed.
    `token_ids` are what stands for it in a prompt, `inputs` the processor's arrays under the names
    that the model takes them by. `thumbnail` is a small JPEG of an image, for people. Prompts with
    the same image share the object.
    """

    digest: bytes
    token_ids: list[int]
    inputs: dict[str, npt.NDArray[Any]]
    thumbnail: bytes = b""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.inputs.values())


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Where in a prompt's tokens a medium stands: from `start` up to `end`."""

    start: int
    end: int
    media: Media


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """A beginning that several prompts share: computed once, and its caches kept for all of them.

    `token_ids` is the whole of it, as `Prompt.content_ids` has it, `parent` a shorter prefix of
    itself that others share too. `num_prompts` of the prompts still to come name it as theirs, not
    counting a child's.
    """

    token_ids: list[int]
    num_prompts: int
    parent: Prefix | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request ready for the engine: never empty, and within the context length.

    `key` is a hex digest of everything that decides the answers of the request (model identity,
    token ids, sampling, shape). A choice of it is known by (key, choice number). `prefix` is the
    longest shared beginning that the plan found for it; at least one token follows it.
    `media` are its images and videos in order, none of which overlap. `grammar` is the request's
    shape, compiled; `choices` are those whose probabilities are asked for,
    `continuation` the tokens whose log-probabilities after the prompt are.
    """

    request: Request
    token_ids: list[int]
    key: str
    prefix: Prefix | None = None
    media: tuple[MediaSpan, ...] = ()
    grammar: Grammar | None = None
    choices: tuple[Choice, ...] = ()
    continuation: tuple[int, ...] = ()
    thinking: Thinking | None = None

    @property
    def is_scored(self) -> bool:
        """Whether the log-probabilities of given tokens are asked for."""
        return bool(self.continuation) or self.request.prompt_logprobs is not None

    @property
    def num_tokens(self) -> int:
        """All tokens that are given."""
        return len(self.token_ids) + len(self.continuation)

    @property
    def row(self) -> Row:
        return self.request.row

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling

    @property
    def prefix_length(self) -> int:
        return len(self.prefix.token_ids) if self.prefix else 0

    @property
    def content_ids(self) -> list[int]:
        """`token_ids` with those of media replaced by numbers below zero that the content decides:
        prompts that begin alike in these do so in what the model sees."""
        if not self.media:
            return self.token_ids
        ids = list(self.token_ids)
        for span in self.media:
            # 63 bits for the first token and 63 others for the rest, which share one object.
            first, rest = _content_id(span.media.digest[:8]), _content_id(span.media.digest[8:16])
            ids[span.start : span.end] = [first, *[rest] * (span.end - span.start - 1)]
        return ids


def _content_id(part: bytes) -> int:
    return -1 - int.from_bytes(part, "little") // 2


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one token under the model's own distribution (before temperature,
    penalties and bias), and of the most likely tokens at its place. `rank` 1 is the likeliest;
    only given tokens have one."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished choice of a prompt.

    `token_ids` are all generated ids, a closing EOS or stop token included; `text` is their text
    without it and without a matched stop string. `stop_reason` is the stop string or stop token id
    that ended it, None for EOS and length. `cached_tokens` of the prompt were not computed for
    this choice; `disk_tokens` of these were read from disk for it, the others were in memory.
    `seconds` runs from the row's admission to its last token. `choice_probs` are the
    probabilities of the prompt's choices, `prompt_scores` those of its continuation's tokens, or of
    its own from the second on.
    """

    prompt: Prompt
    choice: int
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] | None = None
    cached_tokens: int = 0
    disk_tokens: int = 0
    seconds: float = 0.0
    choice_probs: tuple[float, ...] | None = None
    prompt_scores: list[TokenLogprob] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The part of a result that its key decides: what is reused when the same request comes again.

    `logprobs` is the OpenAI "content" list: {token, logprob, bytes, top_logprobs} per token.
    `finished_at` is seconds since the epoch. `parsed` is the text where that is whole JSON after
    the row's schema. `choice_probs` are the probabilities of the row's choices.
    `prompt_logprobs` is vLLM's list of {token id: {logprob, rank, decoded_token}} for each token of
    the prompt, with None for the first. `logprob` is that of a continuation, and `is_greedy`
    whether each of its tokens is the likeliest. `reasoning_tokens` of the answer's are its
    reasoning, with what marks it; None for models without.
    """

    key: str
    choice: int
    text: str
    finish_reason: str
    stop_reason: str | int | None
    prompt_tokens: int
    cached_tokens: int
    disk_tokens: int
    completion_tokens: int
    seconds: float
    model: str
    finished_at: float
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    logprobs: list[dict[str, Any]] | None = None
    parsed: str | None = None
    choice_probs: dict[str, float] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    logprob: float | None = None
    is_greedy: bool | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What is written: one row's choice with its answer, or a row with its error.

    `key` is None for a row that failed before it had one, `correct` where nobody asked whether the
    answer is right, or it cannot be said.
    """

    row: Row
    answer: Answer | None
    error: RowError | None = None
    finished_at: float = 0.0
    is_chat: bool = True
    key: str | None = None
    correct: bool | None = None
