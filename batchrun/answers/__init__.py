"""Completion -> Answer: what a finished completion says, read once, in the form that is kept.

Knows nothing of models, journals or files.
"""

from __future__ import annotations

from batchrun.answers.reader import AnswerReader

__all__ = ["AnswerReader"]
