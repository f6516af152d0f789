"""Prompts -> prompts in running order, those that share a beginning together.

Knows token ids only: nothing of models, caches, or of what a shared beginning is kept in.
"""

from __future__ import annotations

from batchrun.plan.forecast import Forecast, Group, forecast
from batchrun.plan.order import in_running_order

__all__ = ["Forecast", "Group", "forecast", "in_running_order"]
