"""Byte-level tokenizers in mlx-lm's wrapper, with whatever chat template a test needs."""

from __future__ import annotations

from functools import cache
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from batchrun.prepare import Preparer
from batchrun.records import Request, Row, Sampling

BOS, EOS = "<s>", "</s>"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '</s>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@cache
def tokenizer(chat_template: str | None = CHATML, *, adds_bos: bool = False) -> TokenizerWrapper:
    """One token per byte; with `adds_bos` encode() puts a BOS first, as Llama's does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([BOS, EOS])
    if adds_bos:
        fast.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, fast.token_to_id(BOS))]
        )
    return TokenizerWrapper(
        PreTrainedTokenizerFast(
            tokenizer_object=fast, bos_token=BOS, eos_token=EOS, chat_template=chat_template
        )
    )


def preparer(
    chat_template: str | None = CHATML, *, adds_bos: bool = False, **options: Any
) -> Preparer:
    return Preparer(tokenizer(chat_template, adds_bos=adds_bos), model="tiny", **options)


def chat(*messages: dict[str, Any], sampling: Sampling | None = None, **fields: Any) -> Request:
    return Request(_ROW, sampling or Sampling(), messages=list(messages), **fields)


def completion(prompt: str | list[int], sampling: Sampling | None = None) -> Request:
    return Request(_ROW, sampling or Sampling(), prompt=prompt)


def turn(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def text_of(request: Request, using: Preparer | None = None) -> str:
    """The text that the model would see."""
    using = using or preparer()
    return str(tokenizer().decode(using.prepare(request).token_ids))


_ROW = Row(0, "in.jsonl", 1)
