"""The device that MLX runs on: what it is, how much memory it has, and its limits for a run.

`prepare()` comes before anything else imports MLX. Knows nothing of models or rows.
"""

from __future__ import annotations

import functools
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from batchrun import blas

GIB = 1 << 30
Kind = Literal["metal", "cuda", "cpu"]

_METAL_SHARE = 0.9
# On CPU and CUDA other programs share the memory and their needs may grow during the run.
_FREE_SHARE = {"cpu": 0.6, "cuda": 0.9}
# Activations of a prefill chunk and the logits of a batch live beside the KV caches.
_RESERVE = 1 * GIB
# Freed buffers kept for reuse: as much as a step of prefill or decode frees and the next one asks
# for again. On a CPU, memory fresh from the system costs more than what is computed in it: an
# exponential over 13 MB of scores takes five times as long there. Steps are about as large as their
# model: what a small one frees beyond its size would only pile up.
_CACHE_LIMIT = {"cpu": 1 * GIB, "metal": 1 * GIB}
_LEAST_CACHE = GIB // 16
# Products with so small a model's weights are over before other threads have joined in. These then
# turn for the next one, in the way of all else that has to run, as preparing the rows to come.
_SINGLE_THREAD_BYTES = 8 << 20
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Device:
    """`blas` says which library answers float32 products: of interest on "cpu" only.

    `memory_total` is the device's whole memory in bytes, `memory_limit` how much of it this process
    should take at most, weights included, as seen when it was looked at.
    """

    kind: Kind
    name: str
    blas: str
    memory_total: int
    memory_limit: int
    mlx_version: str


class PeakMemory(NamedTuple):
    """Most bytes in use at once: by MLX's arrays since `limits` began, by the process ever."""

    device: int
    process: int


@functools.cache
def prepare() -> Device:
    """Load the right BLAS, then MLX, and say what there is; later calls give the first answer."""
    library = blas.load() if sys.platform == "linux" else "accelerate"
    import mlx.core as mx

    kind = _kind()
    info = mx.device_info()
    return Device(
        kind=kind,
        name=str(info.get("device_name") or platform.processor() or platform.machine()),
        blas=library,
        memory_total=_total(kind, info),
        memory_limit=_limit(kind, info),
        mlx_version=mx.__version__,
    )


@contextmanager
def limits(device: Device) -> Iterator[None]:
    """Bound MLX's memory inside the block as the device asks for; what was set before comes back.

    Metal: memory limit, wired limit, and a bound on freed buffers. CPU: the latter, and threads for
    products. CUDA: nothing.
    """
    import mlx.core as mx

    mx.reset_peak_memory()
    restore: list[tuple[Callable[[int], Any], int]] = []
    if device.kind in _CACHE_LIMIT:
        restore.append((mx.set_cache_limit, mx.set_cache_limit(_CACHE_LIMIT[device.kind])))
    if device.kind == "cpu":
        restore.append((blas.set_threads, blas.threads()))
    if device.kind == "metal":
        restore.append((mx.set_memory_limit, mx.set_memory_limit(device.memory_limit)))
        restore.append((mx.set_wired_limit, mx.set_wired_limit(device.memory_limit)))
    try:
        yield
    finally:
        for setter, previous in reversed(restore):
            setter(previous)
        mx.clear_cache()


def fit(device: Device, weights_bytes: int) -> None:
    """Within `limits`, bound freed buffers and threads by what a model of this size has use for."""
    import mlx.core as mx

    if device.kind in _CACHE_LIMIT:
        mx.set_cache_limit(min(max(weights_bytes, _LEAST_CACHE), _CACHE_LIMIT[device.kind]))
    if device.kind == "cpu" and weights_bytes <= _SINGLE_THREAD_BYTES:
        blas.set_threads(1)


def memory_for_kv(device: Device, weights_bytes: int) -> int:
    """Bytes that KV caches may take, to be asked once the weights are in memory.

    Metal: the limit less weights and reserve. CUDA: 90 % of what is free, less the reserve.
    CPU: 60 % of what is available, less the reserve. Never below an eighth of the reserve, so
    that a small machine still runs a row at a time.
    """
    if device.kind == "metal":
        room = device.memory_limit - weights_bytes
    else:
        room = int(_free(device.kind) * _FREE_SHARE[device.kind])
    return max(room - _RESERVE, _RESERVE // 8)


def peak_memory() -> PeakMemory:
    import mlx.core as mx

    return PeakMemory(device=mx.get_peak_memory(), process=_peak_process())


def _peak_process() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
    # Not getrusage: on Linux that begins with the memory of the process that started this one.
    lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _kind() -> Kind:
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def _total(kind: Kind, info: dict[str, Any]) -> int:
    """Metal calls it memory_size, CUDA total_memory; without either the machine's own counts."""
    if kind != "cpu":
        return int(info.get("memory_size") or info.get("total_memory") or _machine_memory())
    return min([_machine_memory(), *(limit for limit, _ in _cgroup_figures())])


def _limit(kind: Kind, info: dict[str, Any]) -> int:
    if kind == "metal":
        return int(int(info["max_recommended_working_set_size"]) * _METAL_SHARE)
    return _free(kind)


def _free(kind: Kind) -> int:
    import mlx.core as mx

    if kind == "cpu":
        return min([_mem_available(), *(limit - used for limit, used in _cgroup_figures())])
    info = mx.device_info()
    return int(info.get("free_memory") or _total(kind, info) // 2)


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _mem_available() -> int:
    """Linux says it; elsewhere half of the machine's memory."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return _machine_memory() // 2
    lines = meminfo.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def _cgroup_figures() -> list[tuple[int, int]]:
    """(limit, used) bytes of a container, which /proc/meminfo knows nothing of; file cache, which
    gives way, is not used."""
    found = []
    for folder, limit, usage, cache in (
        (_CGROUPS, "memory.max", "memory.current", "inactive_file"),
        (
            _CGROUPS / "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        try:
            most = (folder / limit).read_text(encoding="ascii").strip()
            used = int((folder / usage).read_text(encoding="ascii"))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (FileNotFoundError, PermissionError):  # a container may hide them
            continue
        if most != "max":
            found.append((int(most), used - int(stat.get(cache, 0))))
    return found
