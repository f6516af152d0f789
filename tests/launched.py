"""The real command as `mlx.launch` starts it: on two ranks of this machine, over loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.command import DEADLINE, ROOT, Command

MLX_LAUNCH = Path(sys.executable).with_name("mlx.launch")


class Launched(Command):
    """`mlx.launch -n 2 batchrun in.jsonl -o OUTPUT FLAGS` in `folder`, started at once, with one
    thread a rank for products."""

    def __init__(self, folder: Path, *flags: str, **options: Any):
        program = (str(MLX_LAUNCH), "-n", "2", "-p", str(_free_port()), "--", sys.executable)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        # mlx.launch reads its standard input, and turns in circles where that has ended.
        super().__init__(
            folder,
            *flags,
            program=(*program, "-m", "batchrun"),
            env=environment,
            stdin=subprocess.PIPE,
            **options,
        )
        self._lock = self.output.with_name(f"{self.output.stem}.run.lock")

    def ranks(self) -> tuple[int, int]:
        """The process ids of rank 0, which holds the output's lock, and of rank 1."""
        asked = ["pgrep", "-P", str(self.process.pid)]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        first = int(self._lock.read_text())
        (second,) = set(map(int, found.split())) - {first}
        return first, second

    def until_let_go(self) -> None:
        """Wait until rank 0, which may live longer than mlx.launch, has let go of the output."""
        end = time.monotonic() + DEADLINE
        while self._lock.exists():
            assert time.monotonic() < end
            time.sleep(0.02)


def _free_port() -> int:
    """The first of two neighbours that nobody listens on."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
