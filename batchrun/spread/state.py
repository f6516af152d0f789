"""How far a worker is, as it tells the watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from batchrun.device import Device
from batchrun.engine.stats import EngineStats


@dataclass(slots=True)
class State:
    """What a worker has done since it began. `seconds` went to loading and to preparing rows,
    `peak_memory` is bytes of the device and of the process."""

    stats: EngineStats = field(default_factory=EngineStats)
    seconds: dict[Literal["load", "prepare"], float] = field(
        default_factory=lambda: {"load": 0.0, "prepare": 0.0}
    )
    peak_memory: tuple[int, int] = (0, 0)
    device: Device | None = None
    node: str = ""
    notes: tuple[str, ...] = ()
