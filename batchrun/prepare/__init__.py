"""Request -> Prompt: media, chat template, tokens, checks against the model's sizes, and the key.

Knows nothing of files, of weights, or of how a prompt is run.
"""

from __future__ import annotations

from batchrun.prepare.ahead import Ahead
from batchrun.prepare.key import key, with_occurrence
from batchrun.prepare.preparer import Preparer
from batchrun.prepare.stages import prepared_ahead
from batchrun.prepare.tokenizer import Tokenizer

__all__ = ["Ahead", "Preparer", "Tokenizer", "key", "prepared_ahead", "with_occurrence"]
