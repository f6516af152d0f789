"""The Ray cluster of a run: one that is there, or one of its own on this machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
import ray.data

from batchrun import log
from batchrun.config import ClusterConfig
from batchrun.errors import RunError, UsageError

# Answers of chunks wait there for the books, and rows for a worker: more than enough for both.
_OBJECT_STORE_BYTES = 512 * 2**20
_REACH_SECONDS = 10.0
_REMEDY = "start one with: ray start --head, or run on this machine with --ray alone"


@dataclass(frozen=True, slots=True)
class Team:
    """How many workers there are, what each takes of its machine, and how many of them are on one
    machine at most."""

    num_workers: int
    num_cpus: int
    num_gpus: int
    num_sharing: int


@contextmanager
def connected(config: ClusterConfig) -> Iterator[Team]:
    """Inside, Ray is there. A local cluster ends with the block, one by address goes on.

    Raises RunError where there is no cluster, UsageError where it is too small.
    """
    if ray.is_initialized():  # by the program that uses batchrun as a library
        yield _team(config)
        return
    with _own_signals():
        _connect(config)
    try:
        yield _team(config)
    finally:
        ray.shutdown()


def _connect(config: ClusterConfig) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to Ray's makers
    local: dict[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    is_local = config.address == "local"
    if not is_local:
        log.say(f"Connecting to the Ray cluster {config.address}")
        _check_reach(config.address)
    try:
        with _silent():
            ray.init(
                config.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **(local if is_local else {}),
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RunError(
            f"cannot use the Ray cluster {config.address} ({error}); {_REMEDY}"
        ) from error


def _check_reach(address: str) -> None:
    """Ray itself waits for minutes where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # auto
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"no Ray cluster answers at {address} ({error}); {_REMEDY}") from error


@contextmanager
def _silent() -> Iterator[None]:
    """Ray talks of what it does, and its part in C++ says on stderr even how much it will say."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised as well
    warnings.filterwarnings("ignore", module=r"ray\.data\.")
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it starts; the run has its own way to end."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _team(config: ClusterConfig) -> Team:
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = int(sum(machine.get("GPU", 0) for machine in machines))
    cores = [int(machine["CPU"]) for machine in machines if machine.get("CPU")]
    num_workers = config.workers or gpus or len(cores)
    if gpus >= num_workers:
        return Team(num_workers, num_cpus=1, num_gpus=1, num_sharing=1)
    if not cores or sum(cores) < num_workers:
        raise UsageError(
            f"--workers {num_workers}: the cluster has {sum(cores)} cores; give each worker one"
        )
    return Team(num_workers, *_shares(num_workers, cores))


def _shares(num_workers: int, cores: list[int]) -> tuple[int, int, int]:
    """The most cores that each of so many workers can have, no GPU, and how many workers then may
    be on one machine."""
    each = next(
        each
        for each in range(max(cores), 0, -1)
        if sum(machine // each for machine in cores) >= num_workers
    )
    return each, 0, min(num_workers, max(machine // each for machine in cores))
