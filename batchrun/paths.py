"""Where a run writes, and whether it can."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from batchrun.errors import UsageError
from batchrun.remote import Place, beside, parent
from batchrun.report.summary import page_path, report_path
from batchrun.sink.output import errors_path


def files_beside(output: Path) -> tuple[Path, ...]:
    """What a run writes beside its output."""
    return errors_path(output), report_path(output), page_path(output)


def check_file(target: Path) -> None:
    """Raises UsageError if no file could be written at `target`."""
    _check_folders(target)
    _check_is_file(target)


def check_output(place: Place, inputs: Iterable[str], *, is_folder: bool = False) -> None:
    """Raises UsageError if a run from `inputs` could not write there, or would replace an input.

    `is_folder` says that the output is to be a folder of parts. Looks at names alone; nothing is
    read or written.
    """
    output, inputs = place.path, tuple(inputs)
    if str(output) in ("-", "/dev/stdout"):
        raise UsageError("-o needs a file: standard output cannot be continued by a later run")
    if output.is_dir() and not is_folder:
        raise UsageError(f"{output}: is a folder, and can only hold parts: leave out --format")
    _check_folders(output)
    if is_folder:
        _check_parts(str(output), (path.name for path in output.glob("*")))
        _check_folder(output, inputs)
    written = files_beside(output) if is_folder else (output, *files_beside(output))
    _check_files(written, inputs)
    if place.url is not None:
        _check_elsewhere(place.url, inputs)
        _check_parts(place.url, place.names)


def _check_folders(target: Path) -> None:
    """Those that a file at `target` is in: also where it leads to, if it is a symbolic link."""
    linked = [Path(os.path.realpath(target)).parent] if target.is_symlink() else []
    for folder in (target.parent, *linked):
        if not folder.is_dir():
            raise UsageError(
                f"{target}: there is no folder {folder}; make it with: mkdir -p {folder}"
            )
        if not os.access(folder, os.W_OK):
            raise UsageError(f"{target}: the folder {folder} cannot be written to; choose another")


def _check_is_file(target: Path) -> None:
    # A file takes the place of what is there: of a device or a pipe, that would be its end.
    if target.exists() and not target.is_file():
        raise UsageError(f"{target}: is there and is no file; move it away, or change -o")


def _check_folder(output: Path, inputs: Iterable[str]) -> None:
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output}: is there and is no folder; move it away, or change -o")
    for path in inputs:
        if output.exists() and _is_same(str(Path(path).parent), output):
            raise UsageError(f"{path}: is an input, and lies in the output; change -o")


def _check_parts(output: str, names: Iterable[str]) -> None:
    visible = (name for name in names if not name.startswith((".", "_")))
    strange = next((name for name in visible if not Path(name).match("part-*.parquet")), None)
    if strange is not None:
        raise UsageError(
            f"{output}: holds {strange}, which is no part of an output; name a file in it,"
            " or a new folder"
        )


def _check_elsewhere(url: str, inputs: Iterable[str]) -> None:
    written = {url, *(beside(url, change) for change in (errors_path, report_path, page_path))}
    for path in inputs:
        if path in written or parent(path) == f"{url}/":
            raise UsageError(f"{path}: is an input, and this run would replace it; change -o")


def _check_files(written: Iterable[Path], inputs: Iterable[str]) -> None:
    written = tuple(written)
    for target in written:
        _check_is_file(target)
    for path in inputs:
        if any(_is_same(path, target) for target in written):
            raise UsageError(f"{path}: is an input, and this run would replace it; change -o")


def _is_same(path: str, target: Path) -> bool:
    return os.path.exists(path) and target.exists() and os.path.samefile(path, target)
