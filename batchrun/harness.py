"""batchrun as a model of lm-evaluation-harness, with its engine, its plan and its stored prefixes:

    python -m batchrun.harness --model batchrun --model_args model=FOLDER --tasks gsm8k

This is the harness's own command, `lm_eval`, after the model has been made known to it: the harness
looks for models nowhere but in itself. It needs the extra `eval`.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any

from batchrun import device, folders, models
from batchrun.config import ModelConfig
from batchrun.engine import Engine
from batchrun.errors import RowError, RunError, UsageError
from batchrun.flags import Flags
from batchrun.plan import in_running_order
from batchrun.prefixes.store import PrefixStore, fingerprint
from batchrun.prepare import Preparer
from batchrun.records import Completion, Failure, Prompt, Request, Row, Sampling

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise UsageError(
        f'lm-evaluation-harness is not installed ({error}): pip install "batchrun[eval]"'
    ) from error

WINDOW = Flags.window
_MOST_TOKENS = 256  # of an answer whose task does not say
_GENERATION = {"until", "max_gen_toks", "max_new_tokens", "max_tokens", "do_sample"}
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty")


@register_model("batchrun")
class BatchrunLM(LM):
    """`model` and the other arguments are the command's flags of these names; `pretrained` is the
    harness's word for the model. Its `batch_size` and `device` are batchrun's own to choose."""

    def __init__(
        self,
        model: str | None = None,
        pretrained: str | None = None,
        batch_size: Any = None,  # noqa: ARG002
        max_batch_size: Any = None,  # noqa: ARG002
        device: Any = None,  # noqa: ARG002
        **flags: Any,
    ):
        super().__init__()
        self._flags = Flags.from_names({"model": model or pretrained} | flags)
        self._open = ExitStack()
        atexit.register(self._open.close)
        self._load(self._flags.model_config())

    def generate_until(
        self,
        requests: list[Any],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[str]:
        asked = [(context, _sampling(options)) for context, options in _arguments(requests)]
        rows = [
            Request(_row(index), sampling, prompt=context)
            for index, (context, sampling) in enumerate(asked)
        ]
        answers = [completion.text for completion in self._run(rows)]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers

    def loglikelihood(
        self,
        requests: list[Any],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[tuple[float, bool]]:
        rows = [
            Request(_row(index), Sampling(max_tokens=0), prompt=context, continuation=continuation)
            for index, (context, continuation) in enumerate(_arguments(requests))
        ]
        found = []
        for request, completion in zip(requests, self._run(rows), strict=True):
            scores = completion.prompt_scores or []
            answer = (sum(s.logprob for s in scores), all(s.rank == 1 for s in scores))
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
            found.append(answer)
        return found

    def loglikelihood_rolling(
        self,
        requests: list[Any],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[float]:
        windows = [
            (place, *window)
            for place, (text,) in enumerate(_arguments(requests))
            for window in self._windows(text)
        ]
        rows = [
            Request(_row(index), Sampling(max_tokens=0), prompt=given + scored, prompt_logprobs=0)
            for index, (_, given, scored) in enumerate(windows)
        ]
        totals = [0.0] * len(requests)
        for (place, _, scored), completion in zip(windows, self._run(rows), strict=True):
            scores = (completion.prompt_scores or [])[-len(scored) :]
            totals[place] += sum(score.logprob for score in scores)
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    @property
    def tokenizer_name(self) -> str:
        """What the harness keeps its own caches apart by."""
        return self._identity

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        text: str = self._words.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    def chat_template(self, chat_template: bool | str = False) -> str:  # noqa: ARG002
        return str(self._words.chat_template or "")

    def _load(self, config: ModelConfig) -> None:
        files = models.locate(config, _say)
        machine = device.prepare()
        self._open.enter_context(device.limits(machine))
        loaded = models.load(files, config, machine)
        self._identity = loaded.identity
        self._words = loaded.tokenizer.tokenizer
        self._context_length = loaded.context_length
        self._preparer = Preparer(
            self._words,
            model=loaded.identity,
            context_length=loaded.context_length,
            vocab_size=files.vocab_size,
            eos_token_ids=loaded.eos_token_ids,
        )
        self._engine = Engine(
            loaded,
            self._words,
            loaded.eos_token_ids,
            max_num_seqs=self._flags.checked_max_num_seqs(),
            max_num_batched_tokens=self._flags.max_num_batched_tokens,
            kv_bytes=device.memory_for_kv(machine, loaded.weights_bytes),
            store=self._store(loaded),
        )

    def _store(self, loaded: models.LoadedModel) -> PrefixStore | None:
        nbytes = self._flags.prefix_cache_bytes()
        if not nbytes:
            return None
        store = PrefixStore(
            folders.prefix_cache(None),
            fingerprint=fingerprint(loaded.identity, loaded.dtype),
            model_name=loaded.name,
            max_bytes=nbytes,
        )
        return self._open.enter_context(closing(store))

    def _run(self, rows: list[Request]) -> list[Completion]:
        """The answer to each row, in order. Raises RunError where one cannot be answered: an
        evaluation without it would be another one."""
        found: dict[int, Completion] = {}
        for finished in self._engine.run(in_running_order(self._prompts(rows), window=WINDOW)):
            for each in finished:
                if isinstance(each, Failure):
                    raise RunError(f"request {each.row.index} cannot be done: {each.error}")
                found[each.prompt.row.index] = each
        return [found[index] for index in range(len(rows))]

    def _prompts(self, rows: Iterable[Request]) -> Iterator[Prompt]:
        for row in rows:
            try:
                yield self._preparer.prepare(row)
            except RowError as error:
                raise RunError(f"request {row.row.index} cannot be done: {error}") from error

    def _windows(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        """Stretches of a text that fit in the context: what is given, and what is scored."""
        tokens = self._words.encode(text, add_special_tokens=False)
        begin = self._words.bos_token_id
        begin = self._words.eos_token_id if begin is None else begin
        # The last scored token, and a BOS that a stretch may get.
        most = (self._context_length or len(tokens) + 3) - 2
        windows = get_rolling_token_windows(tokens, begin, most, 1)
        return (make_disjoint_window(window) for window in windows)


def _arguments(requests: list[Any]) -> list[tuple[Any, ...]]:
    return [request.args for request in requests]


def _row(index: int) -> Row:
    return Row(index, "lm-evaluation-harness", index + 1)


def _sampling(options: dict[str, Any]) -> Sampling:
    """What a task asks of an answer. Raises UsageError for what cannot be honoured."""
    unknown = options.keys() - _GENERATION - {*_SAMPLING}
    if unknown:
        raise UsageError(f"generation_kwargs: {min(unknown)} is not known to batchrun")
    until = options.get("until") or []
    lengths = (options.get(name) for name in ("max_gen_toks", "max_new_tokens", "max_tokens"))
    values = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
    if not options.get("do_sample", bool(values.get("temperature"))):
        values["temperature"] = 0.0
    return Sampling(
        max_tokens=next((length for length in lengths if length is not None), _MOST_TOKENS),
        stop=(until,) if isinstance(until, str) else tuple(stop for stop in until if stop),
        **values,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    # Under this name the module is __main__: the harness is to find the class that was registered.
    cli_evaluate()
