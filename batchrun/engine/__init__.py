"""The engine: prompts in, completions out, as many rows at once as fit.

It knows token ids, caches and sampling parameters; nothing of files, messages or the journal.
"""

from batchrun import device

device.prepare()  # before anything below imports MLX

from batchrun.engine.loop import Engine  # noqa: E402

__all__ = ["Engine"]
