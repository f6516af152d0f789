"""A worker that some prompts kill, as a library that crashes would."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from batchrun.models import LoadedModel
from batchrun.spread.worker import Order, Worker

# Token ids. Random answers have one of them at times, but no row of tokens has two.
ALWAYS, ONCE = [311, 311, 311], [312, 312, 312]


def mark(output: Path) -> Path:
    """The file that says that ONCE has killed."""
    return output.with_name("killed")


class DeadlyWorker(Worker):
    def __init__(self, order: Order):
        whole, path = LoadedModel.__call__, mark(order.config.output)

        def deadly(self: LoadedModel, tokens: Any, cache: list[Any], given: Any = None) -> Any:
            if _has(tokens, ALWAYS) or (_has(tokens, ONCE) and not path.exists()):
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(self, tokens, cache, given)

        LoadedModel.__call__ = deadly  # type: ignore[method-assign]
        super().__init__(order)


def _has(tokens: Any, ids: list[int]) -> bool:
    return bool(((tokens == ids[0]).sum(axis=1) > 1).any().item())
