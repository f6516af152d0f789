"""Request -> Prompt: token ids, media, the checks that need the model's sizes, and the key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from batchrun.config import MediaConfig
from batchrun.errors import RowError
from batchrun.prepare.calls import call_shape
from batchrun.prepare.chat import ChatTemplate
from batchrun.prepare.continued import Continued
from batchrun.prepare.grammars import Grammars
from batchrun.prepare.key import key, wants
from batchrun.prepare.media import Loading, MediaLoader, MediaReader, Reference, without_media
from batchrun.prepare.processor import Processor
from batchrun.prepare.spans import MediaTokens
from batchrun.prepare.thinking import thinking_after
from batchrun.prepare.tokenizer import BosRule, Tokenizer, row_error
from batchrun.records import (
    Choice,
    Dialect,
    Failure,
    MediaSpan,
    Prompt,
    Request,
    Sampling,
    Thinking,
)


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A request whose media, if it has any, are on their way. `nbytes` is what these hold already,
    as it came with the row."""

    request: Request
    media: Loading | None = None
    nbytes: int = 0


class Preparer:
    """Turns requests into prompts for one model.

    model: identity of the model, as it enters the keys. context_length: most tokens of prompt and
    answer together, None for no limit. vocab_size: how many token ids the model has, where that
    may be fewer than its tokenizer's. run_seed: the seed of rows that draw and name none.
    processor: the model's if it takes images, which are then found as `media` says.

    Close it where it has a processor.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        model: str,
        context_length: int | None = None,
        vocab_size: int | None = None,
        eos_token_ids: Iterable[int] = (),
        run_seed: int | None = None,
        processor: Processor | None = None,
        media: MediaConfig | None = None,
        dialect: Dialect | None = None,
        reasoning_budget: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._processor = processor
        self._media = media or MediaConfig()
        self._loader = MediaLoader(MediaReader(self._media)) if processor else None
        self._chat = ChatTemplate(tokenizer, processor)
        self._bos = BosRule(tokenizer)
        self._continued = Continued(tokenizer, self._bos)
        self._media_tokens = MediaTokens(processor, self._bos) if processor else None
        self._model = model
        self._context_length = context_length
        self._vocab_size = len(tokenizer)
        self._model_vocab_size = vocab_size
        self._grammars = Grammars(tokenizer, eos_token_ids, vocab_size)
        self._run_seed = run_seed
        self._dialect = dialect or Dialect()
        self._reasoning_budget = reasoning_budget
        self._seen_ids: dict[int, int] = {}

    @property
    def takes_media(self) -> bool:
        return self._processor is not None

    def begin(self, row: Request | Failure) -> Begun | Failure:
        """Start to load the row's media. May run in another thread than all else; rows are to be
        finished in the order in which they were begun."""
        if isinstance(row, Failure):
            return row
        if self._loader is None:
            return Begun(row)
        request, media = without_media(row, self._media.root)
        if not media:
            return Begun(request)
        try:
            self._check_kinds(media)
        except RowError as error:
            return Failure(row.row, error)
        return Begun(request, self._loader.start(media), sum(len(one.value) for one in media))

    def finish(self, begun: Begun | Failure) -> Prompt | Failure:
        """The row's prompt, or its failure: an earlier step's or this one's."""
        if isinstance(begun, Failure):
            return begun
        try:
            return self._finish(begun)
        except RowError as error:
            return Failure(begun.request.row, error)

    def attempt(self, row: Request | Failure) -> Prompt | Failure:
        """Begin and finish one row."""
        return self.finish(self.begin(row))

    def prepare(self, request: Request) -> Prompt:
        """The prompt of one request; the request itself is left as it is.

        Its `max_tokens` is cut to what the context length leaves, so that an answer that meets
        the end of the context has finish_reason "length". The prompt's own request names no media
        any more. Raises RowError.
        """
        begun = self.begin(request)
        if isinstance(begun, Failure):
            raise begun.error
        return self._finish(begun)

    def close(self) -> None:
        """Stop loading media."""
        if self._loader is not None:
            self._loader.close()

    def _finish(self, begun: Begun) -> Prompt:
        request = begun.request
        if request.continuation is not None:
            return self._finish_continued(request)
        encoded, spans = self._encode_media(request, begun.media)
        self._check_sampling_ids(request.sampling)
        token_ids = self._shared(encoded)
        if not token_ids:
            raise RowError("empty_prompt", "the prompt has no tokens", param=_param(request))
        self._check_known(token_ids, request)
        sampling = self._within_context(request, len(token_ids))
        if sampling is not request.sampling:
            request = replace(request, sampling=sampling)
        digests = [span.media.digest for span in spans]
        thinking = self._thinking(request, token_ids)
        wanted = [*wants(request)]
        if thinking is not None and thinking.budget is not None:
            wanted.append(f"reasoning_budget {thinking.budget}")
        name = key(self._model, token_ids, sampling, self._run_seed, wanted, digests)
        shape = call_shape(request, self._dialect) or request.shape
        return Prompt(
            request,
            token_ids,
            name,
            media=tuple(spans),
            grammar=None if shape is None else self._grammars.compile(shape),
            choices=self._choices(request, len(token_ids)),
            thinking=thinking,
        )

    def _thinking(self, request: Request, token_ids: list[int]) -> Thinking | None:
        if not request.is_chat or request.label == "only" or not self._dialect.think_start:
            return None
        decode = self._tokenizer.decode
        return thinking_after(token_ids, self._dialect, decode, self._reasoning_budget)

    def _finish_continued(self, request: Request) -> Prompt:
        """A prompt whose continuation is scored: both are tokenised together, as lm-eval does."""
        encoded, cut = self._continued.encode(request)
        token_ids = self._shared(encoded)
        self._check_known(token_ids, request)
        self._check_room(request, len(token_ids), 0)
        want = f"continuation {cut}"
        name = key(self._model, token_ids, request.sampling, self._run_seed, [want])
        return Prompt(request, token_ids[:cut], name, continuation=tuple(token_ids[cut:]))

    def _choices(self, request: Request, num_tokens: int) -> tuple[Choice, ...]:
        """The choices whose probabilities the request asks for."""
        if request.label is None or request.shape is None:
            return ()
        choices = self._grammars.choices(request.shape)
        self._check_known([token for choice in choices for token in choice.token_ids], request)
        self._check_room(request, num_tokens, max(len(choice.token_ids) for choice in choices))
        return choices

    def _check_kinds(self, media: Sequence[Reference]) -> None:
        takes_video = self._processor is not None and self._processor.takes_video
        for medium in media:
            if medium.kind == "video" and not takes_video:
                message = f"{medium.param} is a video; this model takes images only"
                raise RowError("unsupported_content", message, param=medium.param)

    def _encode_media(
        self, request: Request, media: Loading | None
    ) -> tuple[list[int], list[MediaSpan]]:
        if media is None or self._media_tokens is None:
            return self._encode(request), []
        decoded = media.take()
        return self._media_tokens.encode(self._chat.render(request), decoded)

    def _encode(self, request: Request) -> list[int]:
        if request.is_chat:
            return self._bos.apply(self._chat.encode(request))
        if isinstance(request.prompt, str):
            return self._bos.apply(self._encode_text(request.prompt))
        token_ids = list(request.prompt or ())
        for token_id in token_ids:
            self._check_id(token_id, "prompt")
        return token_ids

    def _encode_text(self, text: str) -> list[int]:
        with row_error("tokenizer_error", "the tokenizer refuses the prompt", "prompt"):
            return list(self._tokenizer.encode(text))

    def _shared(self, token_ids: list[int]) -> list[int]:
        """The same ids, of which equal ones are one object in all prompts. Thousands of prompts
        wait at once, and so a token takes 8 bytes instead of 40."""
        return list(map(self._seen_ids.setdefault, token_ids, token_ids))

    def _check_sampling_ids(self, sampling: Sampling) -> None:
        for token_id in sampling.stop_token_ids:
            self._check_id(token_id, "stop_token_ids")
        for token_id, _ in sampling.logit_bias:
            self._check_id(token_id, "logit_bias")

    def _check_id(self, token_id: int, param: str) -> None:
        # A bool is an int to Python, but true is no token id.
        if type(token_id) is not int or not 0 <= token_id < self._vocab_size:
            message = f"{param} has {token_id!r}; token ids go from 0 to {self._vocab_size - 1}"
            raise RowError("invalid_token_id", message, param=param)

    def _check_known(self, token_ids: list[int], request: Request) -> None:
        # MLX would read beyond the embeddings, and answer at random.
        size, largest = self._model_vocab_size, max(token_ids)
        if size is not None and largest >= size:
            message = (
                f"the prompt has token {largest}, and the model's end at {size - 1}:"
                " the tokenizer is not the model's own"
            )
            raise RowError("invalid_token_id", message, param=_param(request))

    def _within_context(self, request: Request, num_tokens: int) -> Sampling:
        sampling = request.sampling
        if self._context_length is None:
            return sampling
        self._check_room(request, num_tokens, min(sampling.max_tokens, 1))
        room = self._context_length - num_tokens
        return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)

    def _check_room(self, request: Request, num_tokens: int, wanted: int) -> None:
        """Raises RowError where the context has no room for `wanted` tokens after the prompt."""
        if self._context_length is not None and num_tokens + wanted > self._context_length:
            raise RowError(
                "context_length_exceeded",
                f"the prompt has {num_tokens} tokens and the context length is"
                f" {self._context_length}, the answer included; shorten the prompt,"
                " or raise --max-model-len if the model allows it",
                param=_param(request),
            )


def _param(request: Request) -> str:
    return "messages" if request.is_chat else "prompt"
