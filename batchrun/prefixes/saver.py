"""The thread that writes prefixes to disk, so that the engine does not wait for it."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from batchrun.prefixes import files, upkeep
from batchrun.prefixes.elsewhere import Elsewhere
from batchrun.prefixes.eviction import to_evict
from batchrun.prefixes.index import Entry, Index, Use, is_damage, remove_index

_PENDING_BYTES = 1 << 30
_CLOSE_SECONDS = 30.0

# Left free on the disk, which the run's output may need: so many bytes or this share of it.
_SPARED_BYTES = 1_000_000_000
_SPARED_SHARE = 0.1

Job = Callable[[Index], None]


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry that is not written yet: its file's content, of which `entry` lacks the digest."""

    entry: Entry
    data: memoryview
    is_trimmable: bool


class Saver:
    """Writes into `folder` up to `max_bytes` of entries, making room by eviction, except of entries
    whose keys are in `pinned`. `note` is told, from its thread, why it stopped early. What is saved
    also goes `elsewhere`, if there is such a place."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        pinned: Collection[str],
        note: Callable[[str], None],
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._pinned = pinned
        self._note = note
        self._elsewhere = elsewhere
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="prefix-saver", daemon=True)
        self._thread.start()

    def has_room_for(self, nbytes: int) -> bool:
        """Whether so much more may wait in memory."""
        return self.is_alive and self._pending + nbytes <= _PENDING_BYTES

    def save(self, draft: Draft) -> None:
        """Writes it soon."""
        with self._lock:
            self._pending += len(draft.data)
        self._jobs.put(partial(self._save, draft))

    def count_use(self, key: str) -> None:
        self._jobs.put(lambda index: index.count_use(key))

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Waits until everything is written, for half a minute at most."""
        self._jobs.put(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            self._is_stopping = True
            self._note("Not all new prefixes were saved: the disk or the store is too slow")

    def _run(self) -> None:
        try:
            with closing(upkeep.open_index(self._folder)) as index:
                upkeep.sweep(self._folder, index)
                while (job := self._jobs.get()) is not None and not self._is_stopping:
                    job(index)
        except (OSError, sqlite3.Error, MemoryError) as error:
            self._note(f"Prefixes are not saved any more in {self._folder}: {reason(error)}")
            self._jobs = SimpleQueue()
            if is_damage(error):
                with suppress(OSError):
                    remove_index(self._folder)  # the next run has a new one

    def _save(self, draft: Draft, index: Index) -> None:
        digest = hashlib.sha256(draft.data).hexdigest()
        entry = replace(draft.entry, digest=digest, last_use=time.time())
        if entry.nbytes > free_bytes(self._folder):
            self._note(f"A prefix was not saved: little is free on the disk of {self._folder}")
        elif self._to_evict(entry, index) is not None:
            files.make_private(self._folder / entry.model)
            if self._write(entry, draft, index):
                self._share(entry, draft)
        with self._lock:
            self._pending -= len(draft.data)

    def _write(self, entry: Entry, draft: Draft, index: Index) -> bool:
        """Whether it was still wanted: another process may have been quicker."""
        with files.temporary(self._folder / entry.model) as file:
            file.write(draft.data)
            file.flush()
            os.fsync(file.fileno())
            with index.writing():  # the file gets its name in it, or others would sweep it
                gone = self._to_evict(entry, index)
                if gone is None:
                    return False
                upkeep.remove(self._folder, index, gone)
                files.finish(file, files.path_of(self._folder, entry.model, entry.key))
                index.add(entry, is_trimmable=draft.is_trimmable)
        return True

    def _share(self, entry: Entry, draft: Draft) -> None:
        if self._elsewhere is not None:
            path = files.path_of(self._folder, entry.model, entry.key)
            self._elsewhere.put(entry, path, is_trimmable=draft.is_trimmable)

    def _to_evict(self, entry: Entry, index: Index) -> list[Use] | None:
        """What has to go for `entry`; None if it is there already or not worth its place."""
        if index.has(entry.key):
            return None
        pinned = frozenset(self._pinned)
        now = entry.last_use
        return to_evict(index.uses(), self._max_bytes, now, newcomer=entry, pinned=pinned)


def free_bytes(folder: Path) -> int:
    """How much may be written to a disk. Raises OSError."""
    usage = shutil.disk_usage(folder)
    return usage.free - min(_SPARED_BYTES, int(usage.total * _SPARED_SHARE))


def reason(error: OSError | sqlite3.Error | MemoryError) -> str:
    """What an error says, without the path in it."""
    if isinstance(error, MemoryError):
        return "memory ran out"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
