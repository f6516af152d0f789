"""Real processes: killed at every point of a save, and several that use one folder at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from batchrun.prefixes import catalog, files
from batchrun.prefixes.index import Index
from tests.prefixes.builders import (
    MODEL,
    entry_files,
    kv_caches,
    loaded,
    opened,
    others,
    prompt,
    saved,
)

ROOT = Path(__file__).parents[2]
OLD, NEW = prompt(100, first=1), prompt(100, first=2)

DIES = """
import os, signal, sys
from pathlib import Path
from batchrun.prefixes import files
from batchrun.prefixes.index import Index
from tests.prefixes.builders import kv_caches, opened, prompt

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(*{"flush": (os, "fsync"), "rename": (os, "replace"), "index": (Index, "add"),
          "folder": (files, "suppress")}[sys.argv[2]], die)
with opened(Path(sys.argv[1])) as store:
    store.save(prompt(100, first=2), kv_caches(prompt(100, first=2)), 1.0)
"""

SHARES = """
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from tests.prefixes.builders import kv_caches, loaded, opened, prompt

folder, limit, start = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with opened(folder, max_bytes=limit) as store:
    print("open", flush=True)
    sys.stdin.readline()
    for first in range(start, start + 30):
        token_ids = prompt(100, first)
        if loaded(store, token_ids) not in (None, token_ids):
            sys.exit("wrong tokens")
        store.save(token_ids, kv_caches(token_ids), 1.0 + first % 5)
print(*store.notes)
"""


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("moment", ["flush", "rename", "folder", "index"])
def test_killed_while_saving_the_next_run_knows_nothing_of_it(moment: str, tmp_path: Path) -> None:
    old = saved(tmp_path, OLD)
    with python(DIES, tmp_path, moment) as child:
        child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert others(tmp_path) != [] or len(entry_files(tmp_path)) == 2

    with opened(tmp_path) as store:
        assert loaded(store, NEW) is None
        assert loaded(store, OLD) == OLD
        assert store.notes == []
    assert entry_files(tmp_path) == [old]
    assert others(tmp_path) == []
    assert saved(tmp_path, NEW) != tmp_path


def test_files_being_written_by_others_are_left_alone(tmp_path: Path) -> None:
    saved(tmp_path, OLD)
    with files.temporary(tmp_path / MODEL) as file:
        with opened(tmp_path):
            pass
        assert Path(file.name).exists()
        dead = Path(file.name).with_name(".saving-dead")
        dead.write_text("")
        with opened(tmp_path):
            pass
        assert not dead.exists()
    assert others(tmp_path) == []


def test_two_processes_write_read_and_evict_at_once(tmp_path: Path) -> None:
    limit = 8 * saved(tmp_path / "measured", OLD).stat().st_size
    folder = tmp_path / "prefixes"
    children = [python(SHARES, folder, limit, start) for start in (0, 0, 15)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [(child.communicate()[0], child.returncode) for child in children]

    gone = "A stored prefix is gone; it is computed again\n"
    assert all(text in ("\n", gone) and status == 0 for text, status in answers), answers
    assert others(folder) == []
    checked = list(catalog.verify(folder, fix=False))
    assert sorted(path for path, _ in checked) == entry_files(folder)
    assert [fault for _, fault in checked if fault] == []
    assert 4 <= len(checked) <= 8
    with opened(folder) as store:
        for first in range(45):
            assert loaded(store, prompt(100, first)) in (None, prompt(100, first))
        assert store.notes == []


def test_an_index_that_another_process_holds_does_not_stop_a_find(tmp_path: Path) -> None:
    saved(tmp_path, OLD)
    with opened(tmp_path) as store, closing(Index(tmp_path)) as other, other.writing():
        assert store.find(OLD) is not None


def test_an_index_is_made_by_several_at_once(tmp_path: Path) -> None:
    barrier = Barrier(4)

    def make(folder: Path) -> None:
        barrier.wait()
        Index(folder).close()

    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            folder = tmp_path / str(number)
            folder.mkdir()
            assert list(threads.map(make, [folder] * 4)) == [None] * 4


def test_closing_writes_everything(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for first in range(20):
            store.save(prompt(100, first), kv_caches(prompt(100, first)), 1.0)
    assert len(entry_files(tmp_path)) == 20
