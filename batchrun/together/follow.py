"""The ranks beside rank 0: an engine each, which takes the turns that rank 0's takes. They read no
rows, write nothing and say nothing; what ends the run ends them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from batchrun import device
from batchrun.awake import kept_awake
from batchrun.engine import Engine
from batchrun.errors import ModelError
from batchrun.prepare.grammars import Grammars
from batchrun.ranks import Ranks, join
from batchrun.records import Prompt
from batchrun.together import setup
from batchrun.together.lead import Order
from batchrun.together.prompts import Unpacker
from batchrun.together.setup import Asked


class _Over(Exception):
    """Rank 0 will tell no more prompts, nor take a turn."""


def follow() -> None:
    """Take part in everything that rank 0 runs, until it ends. Raises RunError."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every rank: rank 0 sees to it
    ranks = join()
    while (told := ranks.share()) is not None:
        asked = Asked.from_dict(told)
        with (
            ranks.listening(asked.grace),
            kept_awake(asked.keep_awake),
            device.limits(device.prepare()),
        ):
            _take_part(asked, ranks)


def _take_part(asked: Asked, ranks: Ranks) -> None:
    try:
        made, unpack = _started(asked, ranks)
    except ModelError:
        return  # rank 0 has it too, and says it
    try:
        for _ in made.run(_told(ranks, unpack)):
            order, _ = ranks.turn()
            if order == Order.END:
                break
            if order == Order.DRAIN:
                made.drain()
    except _Over:
        return


def _started(asked: Asked, ranks: Ranks) -> tuple[Engine, Unpacker]:
    machine = device.prepare()
    files, model = setup.load(asked, lambda: setup.find(asked), machine, ranks)
    made = setup.engine(asked, model, machine, ranks, None)
    words = model.tokenizer
    grammars = Grammars(words.tokenizer, words.eos_token_ids, files.vocab_size)
    return made, Unpacker(grammars.compile)


def _told(ranks: Ranks, unpack: Unpacker) -> Iterator[Prompt | None]:
    """The prompts that rank 0's engine is given, when it is."""
    while (told := ranks.share()) != []:
        if told is None:
            raise _Over
        yield told[0] and unpack(told[0])
