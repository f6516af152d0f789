"""Whatever is wrong with the folder, nothing is raised and no wrong caches come out of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchrun.prefixes import catalog, saver, upkeep
from batchrun.prefixes.index import NAME
from tests.prefixes.builders import (
    OTHER_MODEL,
    entry_files,
    kv_caches,
    loaded,
    opened,
    others,
    prompt,
    saved,
)

ROOT = Path(__file__).parents[2]
ONE, TWO = prompt(200, first=1), prompt(200, first=2)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def replace_by_another_models(path: Path) -> None:
    shutil.copy(saved(path.parents[1], ONE, model=OTHER_MODEL), path)


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "harm",
    [truncate, empty, flip, replace_by_another_models, replace_by_a_folder, Path.unlink],
)
def test_a_file_that_is_not_as_written_is_not_used(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    saved(tmp_path, TWO)
    path = saved(tmp_path, ONE)
    harm(path)
    with opened(tmp_path) as store:
        assert loaded(store, ONE) is None
        assert store.find(ONE) is None
        assert loaded(store, TWO) == TWO
    assert len(store.notes) == 1


@pytest.mark.parametrize("harm", [truncate, Path.unlink])
def test_a_damaged_prefix_is_saved_anew(harm: Callable[[Path], None], tmp_path: Path) -> None:
    harm(saved(tmp_path, ONE))
    with opened(tmp_path) as store:
        assert loaded(store, ONE) is None
        store.save(ONE, kv_caches(ONE), 1.0)
    with opened(tmp_path) as store:
        assert loaded(store, ONE) == ONE
        assert store.notes == []


def test_two_entries_whose_files_are_swapped_are_both_dropped(tmp_path: Path) -> None:
    one, two = saved(tmp_path, ONE), saved(tmp_path, TWO)
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)

    with opened(tmp_path) as store:
        assert loaded(store, ONE) is None
        assert loaded(store, TWO) is None
        assert len(store.notes) == 1
    assert entry_files(tmp_path) == []


def test_an_index_that_mixes_two_entries_up_gives_neither(tmp_path: Path) -> None:
    one, two = saved(tmp_path, ONE), saved(tmp_path, TWO)
    with sqlite3.connect(tmp_path / NAME) as db:
        rows = dict(db.execute("SELECT key, digest FROM entries"))
        change = "UPDATE entries SET digest = ? WHERE key = ?"
        db.executemany(change, [(rows[one.stem], two.stem), (rows[two.stem], one.stem)])
    db.close()
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)

    with opened(tmp_path) as store:
        assert loaded(store, ONE) is None
        assert loaded(store, TWO) is None
        assert "holds other tokens" in store.notes[0]


@pytest.mark.parametrize(
    "change",
    [
        "tokens = 'text'",
        "tokens = zeroblob(800)",
        "length = 0",
        "length = 150",
        "length = 'many'",
        "length = 10000",
        "digest = x'ff'",
        "nbytes = 'large', hits = 'often', last_use = x'00', seconds = 'long', model = 7",
    ],
)
def test_values_in_the_index_that_cannot_be(change: str, tmp_path: Path) -> None:
    saved(tmp_path, ONE)
    with sqlite3.connect(tmp_path / NAME) as db:
        db.execute(f"UPDATE entries SET {change}")
    db.close()
    for token_ids in (ONE, ONE[:150], [*ONE, 1]):
        with opened(tmp_path) as store:
            assert loaded(store, token_ids) in (None, ONE[: len(token_ids)])
            store.save(TWO, kv_caches(TWO), 1.0)
            assert "digest" in change or store.notes == []


def test_an_index_that_another_process_damages_at_once_again_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, ONE)
    with sqlite3.connect(tmp_path / NAME) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    monkeypatch.setattr(upkeep, "remove_index", lambda folder: None)
    with opened(tmp_path) as store:
        assert store.find(ONE) is None
        store.save(TWO, kv_caches(TWO), 1.0)
    assert len(store.notes) == 1
    assert "layout 99" in store.notes[0]


def test_memory_that_runs_out_while_saving_ends_only_the_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(saver.Saver, "_write", no_memory)
    with opened(tmp_path) as store:
        store.save(ONE, kv_caches(ONE), 1.0)
    assert store.notes == [f"Prefixes are not saved any more in {tmp_path}: memory ran out"]
    assert entry_files(tmp_path) == []


def test_tokens_in_the_index_that_are_not_the_entrys_give_no_part_of_it(tmp_path: Path) -> None:
    saved(tmp_path, ONE)
    with sqlite3.connect(tmp_path / NAME) as db:
        (tokens,) = db.execute("SELECT tokens FROM entries").fetchone()
        db.execute("UPDATE entries SET tokens = ?", (tokens[:400] + bytes(400),))
    db.close()
    with opened(tmp_path) as store:
        assert store.find(ONE[:150]) is None
        assert store.find(ONE) is None
        assert store.notes == []
    saved(tmp_path, ONE)
    with opened(tmp_path) as store:
        assert loaded(store, ONE[:150]) == ONE[:150]


def test_an_entry_replaced_by_another_process_is_not_removed_with_the_old_one(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path, ONE)
    with opened(tmp_path) as store:
        found = store.find(ONE)
        assert found is not None
        path.unlink()
        with opened(tmp_path) as other:
            assert loaded(other, ONE) is None
        with opened(tmp_path) as other:
            different = kv_caches(ONE, width=16)
            other.save(ONE, different, 1.0)
        assert store.load(found) is None
    with opened(tmp_path) as store:
        assert loaded(store, ONE) == ONE


def test_an_older_copy_of_the_index(tmp_path: Path) -> None:
    saved(tmp_path, ONE)
    shutil.copy(tmp_path / NAME, tmp_path / "old")
    saved(tmp_path, TWO)
    entry_files(tmp_path)[0].unlink()
    (tmp_path / "old").replace(tmp_path / NAME)

    with opened(tmp_path) as store:
        assert loaded(store, ONE) in (None, ONE)
        assert loaded(store, TWO) is None
    with opened(tmp_path) as store:
        store.save(ONE, kv_caches(ONE), 1.0)
        store.save(TWO, kv_caches(TWO), 1.0)
    with opened(tmp_path) as store:
        assert (loaded(store, ONE), loaded(store, TWO)) == (ONE, TWO)


@pytest.mark.parametrize("content", [b"not an index" * 1000, b"\0" * 100, b"SQLite format 3\0xx"])
def test_an_index_that_is_none_is_started_anew(content: bytes, tmp_path: Path) -> None:
    saved(tmp_path, ONE)
    (tmp_path / NAME).write_bytes(content)

    with opened(tmp_path) as store:
        assert store.find(ONE) is None
        store.save(TWO, kv_caches(TWO), 1.0)
        assert store.notes == []
    with opened(tmp_path) as store:
        assert loaded(store, TWO) == TWO
    assert len(entry_files(tmp_path)) == 1  # the other is unknown, and swept


def test_an_index_of_another_layout_is_started_anew(tmp_path: Path) -> None:
    saved(tmp_path, ONE)
    with sqlite3.connect(tmp_path / NAME) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    assert saved(tmp_path, TWO).exists()
    with opened(tmp_path) as store:
        assert loaded(store, TWO) == TWO


def test_an_index_damaged_inside_costs_this_run_its_use(tmp_path: Path) -> None:
    saved(tmp_path, ONE)
    size = (tmp_path / NAME).stat().st_size
    with (tmp_path / NAME).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))

    with opened(tmp_path) as store:
        assert store.find(ONE) is None
        store.save(ONE, kv_caches(ONE), 1.0)
        assert store.find(ONE) is None
    assert len(store.notes) >= 1
    saved(tmp_path, TWO)
    with opened(tmp_path) as store:
        assert loaded(store, TWO) == TWO
        assert store.notes == []


def _garble_schema(index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[data.find(b"CREATE TABLE entries") + 8] = 0xB3
    index.write_bytes(data)


def _garble_digest(index: Path) -> None:
    with sqlite3.connect(index) as db:
        ((digest,),) = db.execute("SELECT digest FROM entries")
    data = index.read_bytes()
    assert digest.encode() in data
    index.write_bytes(data.replace(digest.encode(), b"\xff" + digest.encode()[1:]))


def _drop_a_table(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("DROP TABLE blocks")


def _ruin_a_page(index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    index.write_bytes(data)


def _exaggerate(index: Path) -> None:
    with sqlite3.connect(index) as db:
        db.execute("UPDATE entries SET seconds = 9e999, last_use = 9e999")


HARMS = [_garble_schema, _garble_digest, _drop_a_table, _ruin_a_page, _exaggerate]


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_index_heals_by_itself(harm: Callable[[Path], None], tmp_path: Path) -> None:
    saved(tmp_path, ONE)
    _folded(tmp_path)
    harm(tmp_path / NAME)
    with opened(tmp_path) as store:
        assert loaded(store, ONE) in (None, ONE)
        store.save(TWO, kv_caches(TWO), 1.0)
    saved(tmp_path, TWO)
    with opened(tmp_path) as store:
        assert loaded(store, TWO) == TWO
        assert store.notes == []


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_index_can_be_cleared(harm: Callable[[Path], None], tmp_path: Path) -> None:
    saved(tmp_path, ONE)
    _folded(tmp_path)
    harm(tmp_path / NAME)
    catalog.clear(tmp_path, None)
    assert entry_files(tmp_path) == []
    assert catalog.stored(tmp_path) == []


def _folded(folder: Path) -> None:
    """What SQLite keeps beside the index goes into it."""
    with sqlite3.connect(folder / NAME) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.mark.parametrize("what", ["a file", "an index that is a folder", "below a file"])
def test_a_folder_that_cannot_be_one(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "prefixes"
    if what == "an index that is a folder":
        (folder / NAME).mkdir(parents=True)
    else:
        folder.write_text("")
    with opened(folder / "below" if what == "below a file" else folder) as store:
        assert store.find(ONE) is None
        store.save(ONE, kv_caches(ONE), 1.0)
    assert len(store.notes) == 1
    assert str(folder) in store.notes[0]


def test_an_index_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, ONE)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with opened(tmp_path) as store:
        assert store.find(ONE) is None
    assert store.notes == [
        f"Stored prefixes are not used, in {tmp_path}: it belongs to another user"
    ]


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "prefixes", tmp_path / "model" / "model.safetensors"
    elsewhere.parent.mkdir()
    elsewhere.write_text("theirs")
    saved(folder, ONE)
    with sqlite3.connect(folder / NAME) as db:
        db.execute("UPDATE entries SET model = '../model', key = 'model'")
    db.close()
    saved(folder, TWO, max_bytes=50_000, seconds=1e9)
    catalog.prune(folder, 0)
    catalog.clear(folder, None)
    assert elsewhere.read_text() == "theirs"


def test_a_folder_removed_during_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "prefixes"
    saved(folder, ONE)
    with opened(folder) as store:
        found = store.find(ONE)
        assert found is not None
        shutil.rmtree(folder)
        assert store.load(found) is None
        store.save(TWO, kv_caches(TWO), 1.0)
        store.find(TWO)
    assert 1 <= len(store.notes) <= 3


def mounted(folder: Path, options: str) -> None:
    """A small disk at `folder`; skips where the tests may not mount one."""
    mount = shutil.which("mount")
    if sys.platform != "linux" or os.geteuid() != 0 or mount is None:
        pytest.skip("only root on Linux mounts a small disk")
    command = [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted(folder, "size=1m")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_is_not_filled_up(small_disk: Path) -> None:
    large = prompt(7_000)
    with opened(small_disk) as store:
        store.save(large, kv_caches(large), 1.0)
        store.save(ONE, kv_caches(ONE), 1.0)
    assert store.notes == [f"A prefix was not saved: little is free on the disk of {small_disk}"]
    with opened(small_disk) as store:
        assert store.find(large) is None
        assert loaded(store, ONE) == ONE


def test_a_full_disk_ends_saving_alone(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "free_bytes", lambda _: 1 << 40)
    saved(small_disk, ONE)
    large = prompt(10_000)
    with opened(small_disk) as store:
        store.save(large, kv_caches(large), 1.0)
        store.save(TWO, kv_caches(TWO), 1.0)
        assert loaded(store, ONE) == ONE
    assert len(store.notes) == 1
    assert "No space left" in store.notes[0]
    assert others(small_disk) == []
    with opened(small_disk) as store:
        assert store.find(large) is None
        assert loaded(store, ONE) == ONE


def test_a_disk_that_became_read_only(small_disk: Path) -> None:
    saved(small_disk, ONE)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with opened(small_disk) as store:
        assert store.find(ONE) is None
        store.save(TWO, kv_caches(TWO), 1.0)
    assert len(store.notes) == 1
    assert "Read-only file system" in store.notes[0]


LIMITED = """
import resource, sys
from pathlib import Path
from tests.prefixes.builders import kv_caches, opened, prompt

folder, large = Path(sys.argv[1]), prompt(10_000)
with opened(folder) as store:
    store.find(large)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    store.save(large, kv_caches(large), 1.0)
print(*store.notes, sep="\\n")
"""


def test_a_file_that_cannot_grow_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "File too large" in done.stdout
    assert done.stdout.count("\n") == 1
    assert entry_files(tmp_path) == []
    assert others(tmp_path) == []


def test_one_prefix_more_than_the_limit_is_not_saved(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=1000) as store:
        store.save(ONE, kv_caches(ONE), 1.0)
    assert entry_files(tmp_path) == []
    assert "--prefix-cache-size" in store.notes[0]
