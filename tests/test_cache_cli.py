"""`batchrun cache`: what it prints and removes, and what it leaves alone."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from batchrun.cache_cli import cache
from batchrun.cli import main
from tests.prefixes.builders import OTHER_MODEL, entry_files, loaded, opened, prompt, saved

HEAVY = ("mlx", "mlx_lm", "transformers", "pyarrow", "numpy")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual folder, with two prefixes of one model and one of another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "batchrun" / "prefixes"
    saved(folder, prompt(100), seconds=1.0, name="org/model")
    saved(folder, prompt(300), seconds=9.0, name="org/model")
    saved(folder, prompt(200), seconds=5.0, name="other", model=OTHER_MODEL)
    return folder


def invoke(command: str) -> Result:
    program, *args = shlex.split(command)
    assert program == "batchrun"
    return CliRunner().invoke(main, args, prog_name=program)


def megabytes(*paths: Path) -> str:
    return f"{sum(path.stat().st_size for path in paths) / 1e6:.1f} MB"


def test_list_has_a_line_for_each_model(folder: Path) -> None:
    with opened(folder) as store:
        loaded(store, prompt(100))
        loaded(store, prompt(300))
    result = invoke("batchrun cache list")

    assert (result.exit_code, result.stderr) == (0, "")
    head, one, two = (re.split(r" {2,}", line.strip()) for line in result.stdout.splitlines())
    assert head == ["prefixes", "size", "longest", "hits", "last use", "model"]
    sizes = [megabytes(*model.glob("*.safetensors")) for model in sorted(folder.glob("[01]*"))]
    assert (*one[:4], one[5]) == ("2", sizes[0], "300", "2", "org/model")
    assert (*two[:4], two[5]) == ("1", sizes[1], "200", "0", "other")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", one[4])


def test_list_of_a_folder_without_any(tmp_path: Path) -> None:
    folder = tmp_path / "not there"
    result = invoke(f"batchrun cache list --prefix-cache-dir '{folder}'")

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"No prefixes in {folder}.\n"
    assert not folder.exists()


def test_a_models_name_cannot_write_control_characters(tmp_path: Path) -> None:
    saved(tmp_path, prompt(10), name="\x1b[31m\nmodel")
    result = invoke(f"batchrun cache list --prefix-cache-dir {tmp_path}")

    assert result.stdout.count("\n") == 2
    assert "\x1b" not in result.stdout


def test_verify_names_what_is_bad_and_removes_nothing(folder: Path) -> None:
    damaged, gone, good = entry_files(folder)
    os.truncate(damaged, 100)
    gone.unlink()
    result = invoke("batchrun cache verify")

    assert result.exit_code == 3
    assert sorted(result.stdout.splitlines()) == sorted(
        [f"{damaged} is damaged", f"{gone} is gone"]
    )
    assert result.stderr == "Bad prefixes: 2 of 3.\n"
    assert entry_files(folder) == [damaged, good]


def test_verify_with_fix_removes_what_is_bad(folder: Path) -> None:
    damaged, *good = entry_files(folder)
    os.truncate(damaged, 100)
    result = invoke("batchrun cache verify --fix")

    assert (result.exit_code, result.stdout) == (0, f"{damaged} is damaged\n")
    assert result.stderr == "Bad prefixes (removed): 1 of 3.\n"
    assert entry_files(folder) == good
    assert invoke("batchrun cache verify").stderr == "Bad prefixes: 0 of 2.\n"


def test_clear_removes_all_and_nothing_of_others(folder: Path) -> None:
    (folder / "notes.txt").write_text("theirs")
    size = megabytes(*entry_files(folder))
    result = invoke("batchrun cache clear")

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"Prefixes removed: 3 ({size}).\n"
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "prefixes.sqlite"}
    assert invoke("batchrun cache list").stderr.startswith("No prefixes")


def test_clear_of_one_model(folder: Path) -> None:
    result = invoke("batchrun cache clear --model org/model")

    assert result.stderr.startswith("Prefixes removed: 2 (")
    assert [path.parent.name for path in entry_files(folder)] == [OTHER_MODEL]


def test_clear_of_a_model_that_has_none(folder: Path) -> None:
    result = invoke("batchrun cache clear --model model")

    assert result.exit_code == 2
    assert result.stderr == "Error: no prefixes of a model model; batchrun cache list names all\n"
    assert len(entry_files(folder)) == 3


def test_prune_leaves_what_saves_most(folder: Path) -> None:
    size = sum(path.stat().st_size for path in entry_files(folder))
    result = invoke(f"batchrun cache prune --prefix-cache-size {(size - 1) / 1000}KB")

    assert result.exit_code == 0
    assert result.stderr.startswith("Prefixes removed: 1 (")
    with opened(folder) as store:
        found = store.find(prompt(100))
        assert found is not None
        assert found.entry_length == 300
    assert invoke("batchrun cache prune").stderr == "Prefixes removed: 0 (0.0 MB).\n"
    assert invoke("batchrun cache prune --prefix-cache-size 0").exit_code == 0
    assert entry_files(folder) == []


def test_a_size_that_cannot_be(folder: Path) -> None:
    result = invoke("batchrun cache prune --prefix-cache-size much")

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: --prefix-cache-size must be 0, or a size as 500MB or ")


@pytest.mark.parametrize("command", ["list", "verify", "prune"])
def test_a_damaged_index_says_how_to_start_over(command: str, folder: Path) -> None:
    (folder / "prefixes.sqlite").write_bytes(b"not an index" * 1000)
    result = invoke(f"batchrun cache {command}")

    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "start over with batchrun cache clear" in result.stderr
    assert len(entry_files(folder)) == 3
    assert invoke("batchrun cache clear").exit_code == 0
    assert entry_files(folder) == []


@pytest.mark.parametrize("command", ["list", "verify", "clear", "prune"])
def test_a_folder_that_is_none_of_ours_is_left_as_it_is(command: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("theirs")
    assert invoke(f"batchrun cache {command} --prefix-cache-dir {tmp_path}").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_running_store_goes_on_without_what_is_cleared(folder: Path) -> None:
    with opened(folder) as store:
        found = store.find(prompt(100))
        assert found is not None
        invoke("batchrun cache clear")
        assert store.load(found) is None
        assert store.find(prompt(100)) is None


@pytest.mark.parametrize("command", list(cache.commands.values()), ids=lambda item: item.name)
def test_every_command_and_flag_has_help(command: click.Command) -> None:
    assert command.short_help
    assert command.short_help.endswith(".")
    for param in command.params:
        assert isinstance(param, click.Option)
        assert param.help
        assert param.help.partition("  [")[0].endswith(".")
    assert invoke(f"batchrun cache {command.name} -h").stdout.startswith("Usage: batchrun cache")


def test_the_help_of_batchrun_names_the_command() -> None:
    text = invoke("batchrun --help").stdout
    assert "       batchrun cache COMMAND [FLAGS]\n" in text
    for name in ("list", "verify", "clear", "prune"):
        assert name in invoke("batchrun cache --help").stdout


def test_nothing_heavy_is_loaded_for_it(folder: Path) -> None:
    code = "from batchrun.cli import main; main(['cache', 'verify'], standalone_mode=False)"
    probe = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\n"
    probe += f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    root = Path(__file__).parent.parent
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout == "[]\n"
