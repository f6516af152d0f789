"""Puts an OpenBLAS in front of the reference BLAS that MLX's Linux wheels link.

A library opened with RTLD_GLOBAL answers symbol lookups of libraries opened after it, so this works
only before `mlx.core` is first imported. It makes float32 products some 20 times faster. Knows
nothing of MLX but its name.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from batchrun.errors import UsageError

VARIABLE = "BATCHRUN_BLAS"
_SONAMES = ("libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so")
_WHEEL_LIBRARIES = ("libquadmath*", "libgfortran*", "libopenblas*")  # each needs those before it


def load() -> str:
    """Make an OpenBLAS answer MLX's calls where one can be found; returns which BLAS answers.

    `BATCHRUN_BLAS` names a library to use instead, or is "off". Raises UsageError when what it
    names cannot be loaded.
    """
    if loaded := name_of(ctypes.CDLL(None)):
        return loaded
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "off":
        return f"reference ({VARIABLE}=off)"
    if "mlx.core" in sys.modules:
        return "reference (MLX was imported before an OpenBLAS could be loaded)"
    if wanted:
        return _load_wanted(wanted)
    return _first_that_loads(_candidates()) or "reference (no OpenBLAS found)"


def name_of(library: ctypes.CDLL) -> str | None:
    """ "openblas 0.3.21" for an OpenBLAS with the usual 32-bit interface, else None."""
    try:
        config, _ = library.openblas_get_config, library.cblas_sgemm
    except AttributeError:
        return None
    config.restype = ctypes.c_char_p
    words = config().decode("ascii", "replace").split()
    return " ".join(["openblas", *words[1:2]])


def threads() -> int:
    """How many threads an OpenBLAS in this process may use; 0 where there is none."""
    library = ctypes.CDLL(None)
    return int(library.openblas_get_num_threads()) if name_of(library) else 0


def set_threads(number: int) -> None:
    """Have an OpenBLAS, if there is one in this process, use so many threads."""
    library = ctypes.CDLL(None)
    if name_of(library):
        library.openblas_set_num_threads(number)


def _load_wanted(path: str) -> str:
    try:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise UsageError(
            f"{VARIABLE}={path} cannot be loaded ({error}); name a BLAS library, or unset it"
        ) from error
    return name_of(library) or Path(path).name


def _first_that_loads(candidates: Iterator[list[str]]) -> str | None:
    for chain in candidates:
        try:
            *_, library = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in chain]
        except OSError:
            continue
        if name := name_of(library):
            return name
    return None


def _candidates() -> Iterator[list[str]]:
    """Chains of libraries to open in order, the OpenBLAS last: the system's, then a wheel's."""
    for soname in _SONAMES:
        yield [soname]
    package = importlib.util.find_spec("cv2")
    if package is None or package.origin is None:
        return
    for folder in sorted(Path(package.origin).parents[1].glob("opencv_python*.libs")):
        chain = [str(path) for pattern in _WHEEL_LIBRARIES for path in sorted(folder.glob(pattern))]
        if chain:
            yield chain
