"""Fixtures for every room: tiny models, each written once a session, runs on one, a small disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import batchrun
from batchrun import device
from batchrun.report.summary import Summary
from tests import tiny, tinyvision
from tests.bucket import Bucket
from tests.running import write_jsonl

os.environ["HF_HUB_OFFLINE"] = "1"  # read by huggingface_hub when first imported
device.prepare()

# A busy machine is no fault of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def _object_store() -> Iterator[str]:
    """The address of a server that speaks S3, on this machine alone."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(_object_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A new bucket, to which the environment has the credentials."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", _object_store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = Bucket(_object_store)
    yield bucket
    bucket.delete()


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of outputs elsewhere, and their journals, are in no user's home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(autouse=True)
def _own_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes into the user's cache, nor comes from it but the real model."""
    if request.node.get_closest_marker("real_model") is None:
        folder = request.getfixturevalue("tmp_path_factory").mktemp("cache")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


@pytest.fixture(scope="session", autouse=True)
def _one_list_of_fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib looks through the system's fonts once, and not in every process of a test."""
    os.environ.setdefault("MPLCONFIGDIR", str(tmp_path_factory.mktemp("matplotlib")))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model(kind, **overrides)`: the folder of a tiny model, shared; do not write to it."""
    built: dict[str, Path] = {}

    def get(kind: str, **overrides: Any) -> Path:
        key = repr((kind, sorted(overrides.items())))
        if key not in built:
            built[key] = tiny.build(kind, tmp_path_factory.mktemp(kind), **overrides)
        return built[key]

    return get


@pytest.fixture(scope="session")
def tiny_vision(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny_vision(kind)`: the folder of a tiny vision model, shared; do not write to it."""
    built: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in built:
            built[kind] = tinyvision.build(kind, tmp_path_factory.mktemp(kind))
        return built[kind]

    return get


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB; skipped where the tests may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if sys.platform != "linux" or os.geteuid() != 0 or mount is None:
        pytest.skip("only root on Linux mounts a small disk")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def run(tmp_path: Path, tiny_model: Callable[..., Path], output: Path) -> Callable[..., Summary]:
    """`run(rows, **flags)`: the rows through a tiny model into the test's `output`."""

    def run(rows: list[Any], **flags: Any) -> Summary:
        defaults = {"model": str(tiny_model("llama")), "max_tokens": 4, "quiet": True}
        path = write_jsonl(tmp_path / "in.jsonl", rows)
        return batchrun.run(path, output=output, **(defaults | flags))

    return run
