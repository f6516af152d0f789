from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import mlx.core as mx
import pytest

from batchrun import blas, device
from batchrun.device import GIB, Device

REPORT = "from batchrun import device; print(device.prepare().blas)"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems bring their BLAS")


def fake(kind: device.Kind, limit: int = 40 * GIB) -> Device:
    return Device(
        kind=kind, name="x", blas="x", memory_total=64 * GIB, memory_limit=limit, mlx_version="0"
    )


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], **environment},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


@linux_only
def test_openblas_is_loaded_before_mlx() -> None:
    assert python(REPORT).stdout.startswith("openblas 0.")


@linux_only
def test_openblas_of_the_opencv_wheel_serves_when_the_system_has_none() -> None:
    code = f"from batchrun import blas; blas._SONAMES = (); {REPORT}"
    assert python(code).stdout.startswith("openblas 0.")


@linux_only
def test_an_openblas_already_in_the_process_is_recognised() -> None:
    code = f"from batchrun import blas; blas.load(); import mlx.core; {REPORT}"
    assert python(code).stdout.startswith("openblas 0.")


@linux_only
def test_mlx_imported_first_is_reported() -> None:
    assert "imported before" in python(f"import mlx.core; {REPORT}").stdout


@linux_only
def test_blas_can_be_turned_off() -> None:
    assert python(REPORT, BATCHRUN_BLAS="off").stdout == "reference (BATCHRUN_BLAS=off)\n"


@linux_only
def test_wrong_blas_path_is_one_clear_line() -> None:
    last = python(REPORT, BATCHRUN_BLAS="/no/such.so").stderr.splitlines()[-1]
    assert last.startswith("batchrun.errors.UsageError: BATCHRUN_BLAS=/no/such.so cannot be loaded")


def test_works_without_compiler_and_nvidia_tools_in_another_thread() -> None:
    code = (
        "import threading; from batchrun import device\n"
        "def work():\n"
        "    found = device.prepare()\n"
        "    with device.limits(found):\n"
        "        import mlx.core as mx\n"
        "        print(found.kind, float((mx.ones((8, 8)) @ mx.ones((8, 8))).sum()))\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()"
    )
    done = python(code, PATH="/nonexistent")
    assert done.stderr == ""
    assert done.stdout.split()[1] == "512.0"


def test_the_record_names_device_blas_memory_and_version() -> None:
    facts = asdict(device.prepare())
    assert facts["kind"] in ("metal", "cuda", "cpu")
    assert facts["mlx_version"] == mx.__version__
    assert 0 < facts["memory_limit"] <= facts["memory_total"]
    assert facts["name"]
    assert facts["blas"]


def test_repeated_prepare_gives_the_same_record() -> None:
    assert device.prepare() is device.prepare()


def test_limits_are_restored_after_an_error() -> None:
    before = mx.get_memory_limit()
    cache = mx.set_cache_limit(12345)
    with pytest.raises(KeyError), device.limits(fake("metal", limit=3 * GIB)):
        assert mx.get_memory_limit() == 3 * GIB
        raise KeyError
    assert mx.get_memory_limit() == before
    assert mx.set_cache_limit(cache) == 12345


def test_memory_limit_is_left_alone_off_metal() -> None:
    before = mx.get_memory_limit()
    with device.limits(fake("cpu", limit=3 * GIB)):
        assert mx.get_memory_limit() == before


def test_metal_keeps_a_tenth_of_the_recommended_set_free() -> None:
    info = {"max_recommended_working_set_size": 10 * GIB, "memory_size": 16 * GIB}
    assert device._limit("metal", info) == 9 * GIB
    assert device._total("metal", info) == 16 * GIB


def test_metal_kv_memory_is_limit_less_weights_and_reserve() -> None:
    assert device.memory_for_kv(fake("metal"), 10 * GIB) == 29 * GIB


def test_kv_memory_is_never_nothing() -> None:
    assert device.memory_for_kv(fake("metal"), 400 * GIB) == GIB // 8


def test_cuda_kv_memory_follows_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {"free_memory": 20 * GIB})
    assert device.memory_for_kv(fake("cuda"), 5 * GIB) == 17 * GIB


def test_cuda_without_memory_figures_takes_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {"total_memory": 40 * GIB})
    assert device.memory_for_kv(fake("cuda"), 5 * GIB) == 17 * GIB


def test_cpu_kv_memory_is_a_share_of_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_mem_available", lambda: 20 * GIB)
    monkeypatch.setattr(device, "_cgroup_figures", list)
    assert device.memory_for_kv(fake("cpu"), 5 * GIB) == 11 * GIB


CGROUP_FILES = {
    "v2": ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    "v1": (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
}


@pytest.mark.parametrize("version", CGROUP_FILES)
def test_a_containers_limit_counts(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, usage, stat, cache = CGROUP_FILES[version]
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text(f"{8 * GIB}\n")
    (tmp_path / usage).write_text(f"{6 * GIB}\n")
    (tmp_path / stat).write_text(f"anon 1\n{cache} {1 * GIB}\n")
    monkeypatch.setattr(device, "_CGROUPS", tmp_path)
    monkeypatch.setattr(device, "_mem_available", lambda: 50 * GIB)
    assert device._free("cpu") == 3 * GIB
    assert device._total("cpu", {}) <= 8 * GIB


def test_a_container_without_limit_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("max", "max"), ("current", "1"), ("stat", "inactive_file 1")):
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    monkeypatch.setattr(device, "_CGROUPS", tmp_path)
    assert device._cgroup_figures() == []


def test_a_container_that_hides_its_limit_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*_args: object, **_options: object) -> str:
        raise PermissionError

    monkeypatch.setattr(device.Path, "read_text", forbidden)
    assert device._cgroup_figures() == []


@pytest.mark.parametrize(
    ("weights", "limit"), [(4 << 20, GIB // 16), (GIB // 2, GIB // 2), (40 * GIB, GIB)]
)
def test_freed_buffers_are_bounded_by_the_models_size(weights: int, limit: int) -> None:
    with device.limits(fake("cpu", limit=3 * GIB)):
        device.fit(fake("cpu"), weights)
        assert mx.set_cache_limit(limit) == limit


@pytest.mark.parametrize(("weights", "threads"), [(4 << 20, 1), (GIB // 2, 3)])
def test_small_models_need_one_thread_for_a_product(weights: int, threads: int) -> None:
    assert device.prepare().blas.startswith("openblas")
    before = blas.threads()
    blas.set_threads(3)
    try:
        with device.limits(fake("cpu")):
            device.fit(fake("cpu"), weights)
            assert blas.threads() == threads
        assert blas.threads() == 3
    finally:
        blas.set_threads(before)


def test_peak_memory_counts_arrays_since_limits_began() -> None:
    before = mx.get_active_memory()  # other tests' models
    with device.limits(fake("cpu")):
        mx.eval(mx.zeros((1 << 20,)))
        peak = device.peak_memory()
    assert 4 << 20 <= peak.device - before < 64 << 20
    assert peak.process > 10 << 20


def test_peak_memory_is_not_that_of_the_process_that_started_this_one() -> None:
    ballast = b"x" * (300 << 20)
    peak = int(python("from batchrun import device; print(device.peak_memory().process)").stdout)
    assert 10 << 20 < peak < len(ballast)
