"""The direction of dependencies: who may import whom, and what a quick start may not import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "batchrun"
MLX = {"mlx", "mlx_lm", "mlx_vlm"}
MAY_IMPORT_MLX = {"engine", "models", "prefixes", "device", "ranks"}

# Lowest first: a layer imports itself and those above it in this list. What is not named here
# wires the steps together, and no step may import it.
LAYERS = [
    {"errors"},
    {"records"},
    {"config", "folders"},
    {"remote"},
    {"blas"},
    {"device"},
    {"ranks"},
    {"models"},
    {"source"},
    {"prepare"},
    {"plan"},
    {"prefixes"},
    {"engine"},
    {"answers"},
    {"evaluation"},
    {"sink"},
    {"report"},
]
HEAVY = ["mlx", "mlx_lm", "mlx_vlm", "transformers", "tokenizers", "pyarrow", "numpy", "PIL"]
HEAVY += ["fsspec", "matplotlib", "pandas", "ray"]


def modules() -> dict[str, Path]:
    """Dotted name below the package -> file; a folder goes by its own name."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


def room(module: str) -> str:
    return module.split(".")[0]


def level(module: str) -> int:
    return next(
        (number for number, rooms in enumerate(LAYERS) if room(module) in rooms), len(LAYERS)
    )


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every dotted name that a file imports, at its top or inside a function, and the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def test_every_layer_exists() -> None:
    rooms = {room(module) for module in modules()}
    assert set.union(*LAYERS) <= rooms


@pytest.mark.parametrize("module", modules())
def test_only_the_rooms_that_run_models_import_mlx(module: str) -> None:
    path = modules()[module]
    found = [f"{path}:{line}" for name, line in imported(path) if name.split(".")[0] in MLX]
    assert room(module) in MAY_IMPORT_MLX or not found


@pytest.mark.parametrize("module", modules())
def test_only_the_room_that_spreads_rows_imports_ray(module: str) -> None:
    path = modules()[module]
    found = [f"{path}:{line}" for name, line in imported(path) if name.split(".")[0] == "ray"]
    assert room(module) == "spread" or not found


@pytest.mark.parametrize("module", modules())
def test_no_step_imports_a_later_one(module: str) -> None:
    path = modules()[module]
    ours = [
        (name.removeprefix("batchrun."), line)
        for name, line in imported(path)
        if name.startswith("batchrun.")
    ]
    late = [f"{path}:{line} imports {name}" for name, line in ours if level(name) > level(module)]
    assert late == []


def test_the_walk_sees_imports_inside_functions() -> None:
    assert "mlx.core" in {name for name, _ in imported(PACKAGE / "device.py")}


@pytest.mark.parametrize("module", ["cli", "config", "models", "device"])
def test_quick_imports_stay_quick(module: str) -> None:
    code = f"import sys, batchrun.{module}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
