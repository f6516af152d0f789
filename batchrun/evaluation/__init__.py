"""Whether answers are right, and how sure one may be of their share.

It knows texts and results; nothing of models, files or pages.
"""

from batchrun.evaluation.judge import Judge
from batchrun.evaluation.tally import Evaluation, tally

__all__ = ["Evaluation", "Judge", "tally"]
