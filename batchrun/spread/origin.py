"""Where a run was started: its other processes find there what its paths and URLs name."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from batchrun import remote


@dataclass(frozen=True, slots=True)
class Origin:
    """Paths begin in `folder`; `secrets` were taken out of URLs."""

    folder: str
    secrets: remote.Secrets

    @classmethod
    def here(cls) -> Origin:
        return cls(os.getcwd(), remote.secrets())

    def enter(self) -> None:
        """Makes this process one of the run's. Its machine may lack the folder, and may not need
        it."""
        remote.learn(self.secrets)
        with suppress(OSError):
            os.chdir(self.folder)
