"""Stored prefixes as the engine uses them: find one, load it, save a new one.

A store belongs to the thread that opened it, in which MLX runs; files are written in another.
Nothing here raises because of what is on disk: `notes` say what could not be used.
"""

from __future__ import annotations

import io
import sqlite3
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from batchrun.prefixes import caches as packing
from batchrun.prefixes import files, upkeep
from batchrun.prefixes.blocks import chain, common_length, encode, first_tokens, key_of
from batchrun.prefixes.elsewhere import Elsewhere, Kept
from batchrun.prefixes.index import Entry, Index, is_damage, remove_index
from batchrun.prefixes.saver import Draft, Saver, reason

# Part of every fingerprint: a changed form of the files finds nothing of the old one.
_LAYOUT = 2


def fingerprint(identity: str, dtype: str) -> str:
    """What entries of a model are kept under: its `identity` (weights, tokenizer, adapter), the
    format it runs in, and the library whose caches are stored."""
    library = ".".join(version("mlx-lm").split(".")[:2])
    text = f"layout {_LAYOUT}, mlx-lm {library}, {dtype}, {identity}"
    return blake2b(text.encode(), digest_size=20).hexdigest()


@dataclass(frozen=True, slots=True)
class Found:
    """An entry that gives the first `length` tokens of a prompt: `nbytes` have to be read for it,
    and `seconds_saved` is what computing these tokens took."""

    key: str
    digest: str
    length: int
    entry_length: int
    nbytes: int
    seconds_saved: float


class PrefixStore:
    """The prefixes of one model in `folder`, which holds at most `max_bytes` for all models. With a
    `url`, what is not here is looked for there, and what is saved here goes there too.

    `fingerprint` is as by the function; `model_name` is for people. Opening never fails: a folder
    that cannot be used finds nothing and saves nothing, and `notes` says why.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fingerprint: str,
        model_name: str,
        max_bytes: int,
        url: str | None = None,
    ) -> None:
        self.notes: list[str] = []
        self._folder = folder
        self._model = fingerprint
        self._model_name = model_name
        self._max_bytes = max_bytes
        self._pinned: set[str] = set()  # being loaded
        self._not_loadable: set[str] = set()
        self._index: Index | None = None
        self._saver: Saver | None = None
        self._elsewhere: Elsewhere | None = None
        self._not_here: dict[str, tuple[Kept, bytes]] = {}  # by key, with the tokens
        try:
            self._index = upkeep.open_index(folder)
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)
        else:
            if url is not None:
                self._elsewhere = Elsewhere(url, fingerprint, self._note)
            self._saver = Saver(folder, max_bytes, self._pinned, self._note, self._elsewhere)

    def find(self, token_ids: list[int]) -> Found | None:
        """The entry that gives most of the beginning of `token_ids`. Reads the index alone."""
        if self._index is None or not token_ids:
            return None
        try:
            tokens = encode(token_ids)
            found = self._search(self._index, tokens)
        except sqlite3.Error as error:
            self._give_up(error)
            return None
        return self._longer_elsewhere(tokens, found)

    def load(self, found: Found) -> list[Any] | None:
        """Fresh caches, one per layer, that hold `found.length` tokens of one sequence, in memory.

        None if the entry is damaged, upon which it is removed, or gone.
        """
        self._pinned.add(found.key)
        try:
            caches = self._bring(found) if found.key in self._not_here else self._read(found)
        except RuntimeError as error:  # the file is whole: memory ran out
            self._note(f"A stored prefix cannot be loaded ({error}); it is computed again")
            self._not_loadable.add(found.key)
            return None
        finally:
            self._pinned.discard(found.key)
        if caches is None:
            return None
        if self._saver is not None:
            self._saver.count_use(found.key)
        return caches

    def save(self, token_ids: list[int], caches: list[Any], seconds: float) -> None:
        """Keep `caches`, one per layer, which hold just `token_ids` and took `seconds` to compute
        from the first token on.

        Returns once they are copied; they are written in the background.
        """
        if self._index is None or self._saver is None or not self._saver.is_alive:
            return
        try:
            draft = self._draft(self._index, self._saver, token_ids, caches, seconds)
        except sqlite3.Error as error:
            self._give_up(error)
        except (packing.NotStorable, RuntimeError, MemoryError) as error:
            self._note(f"A prefix was not saved: {str(error) or 'memory ran out'}")
        else:
            if draft is not None:
                self._saver.save(draft)

    def close(self) -> None:
        """Waits for what is still to be written, half a minute at most."""
        if self._saver is not None:
            self._saver.close()
        if self._index is not None:
            self._index.close()
            self._index = None

    def _search(self, index: Index, tokens: bytes) -> Found | None:
        hashes = chain(self._model, tokens)
        whole = index.longest(hashes, tokens)
        options = [] if whole is None else [(whole.length, whole)]
        options += [(common_length(tokens, e.tokens), e) for e in index.sharing(hashes)]
        options.sort(key=lambda option: (-option[0], option[1].nbytes))
        for length, entry in options:
            if entry.is_consistent and entry.key not in self._not_loadable:
                self._not_here.pop(entry.key, None)  # it has come in the meantime
                seconds = entry.seconds * length / entry.length
                return Found(entry.key, entry.digest, length, entry.length, entry.nbytes, seconds)
        return None

    def _longer_elsewhere(self, tokens: bytes, found: Found | None) -> Found | None:
        """What is elsewhere, where that gives more than what was found here."""
        if self._elsewhere is None:
            return found
        length = found.length if found else 0
        kept = self._elsewhere.longest(chain(self._model, tokens), tokens, length)
        if kept is None or kept.key in self._not_loadable:
            return found
        self._not_here[kept.key] = (kept, tokens)
        return Found(kept.key, kept.digest, kept.length, kept.length, kept.nbytes, kept.seconds)

    def _bring(self, found: Found) -> list[Any] | None:
        """What is elsewhere, which from now on is here too."""
        kept, tokens = self._not_here.pop(found.key)
        data = self._elsewhere.fetch(kept) if self._elsewhere else None
        if data is None:
            return None
        arrays, metadata = mx.load(io.BytesIO(data), format="safetensors", return_metadata=True)
        if metadata.get("key") != found.key:
            self._note("A stored prefix elsewhere holds other tokens; it is computed again")
            self._not_loadable.add(found.key)
            return None
        if self._saver is not None and self._saver.has_room_for(len(data)):
            entry = self._entry(kept.key, tokens, kept.length, len(data), kept.seconds)
            self._saver.save(Draft(entry, memoryview(data), kept.is_trimmable))
        return _unpacked(arrays, metadata["caches"], found)

    def _read(self, found: Found) -> list[Any] | None:
        fault = upkeep.fault(self._folder, self._model, found.key, found.digest)
        if fault is None:
            path = files.path_of(self._folder, self._model, found.key)
            arrays, metadata = mx.load(str(path), return_metadata=True)
            if metadata["key"] == found.key:
                return _unpacked(arrays, metadata["caches"], found)
            fault = "holds other tokens"
        self._drop(found, fault)
        return None

    def _draft(
        self, index: Index, saver: Saver, token_ids: list[int], caches: list[Any], seconds: float
    ) -> Draft | None:
        """What is to be written, None if it is there already. Raises NotStorable."""
        tokens = encode(token_ids)
        length = len(token_ids)
        key = key_of(chain(self._model, tokens), tokens, length)
        if index.has(key):
            return None
        packed = packing.pack(caches, length)
        size = sum(array.nbytes for array in packed.arrays.values())
        if size > self._max_bytes:
            raise packing.NotStorable("--prefix-cache-size is less than it takes")
        if not saver.has_room_for(size):
            raise packing.NotStorable("too much was waiting to be written")
        data = packing.serialised(packed, key)
        entry = self._entry(key, tokens, length, len(data), seconds)
        return Draft(entry, data, packed.is_trimmable)

    def _entry(self, key: str, tokens: bytes, length: int, nbytes: int, seconds: float) -> Entry:
        """A new one, of the first `length` of `tokens`."""
        return Entry(
            key=key,
            model=self._model,
            nbytes=nbytes,
            digest="",
            seconds=seconds,
            hits=0,
            last_use=0.0,
            model_name=self._model_name,
            length=length,
            tokens=first_tokens(tokens, length),
        )

    def _drop(self, found: Found, fault: str) -> None:
        self._note(f"A stored prefix {fault}; it is computed again")
        if self._index is None:
            return
        try:
            with self._index.writing():
                if self._index.remove(found.key, found.digest):
                    files.discard(files.path_of(self._folder, self._model, found.key))
        except sqlite3.Error as error:
            self._give_up(error)

    def _give_up(self, error: OSError | sqlite3.Error) -> None:
        """Use the folder no more. A damaged index goes, so that the next run has a new one."""
        self._note(f"Stored prefixes are not used, in {self._folder}: {reason(error)}")
        if self._index is not None:
            self._index.close()
            self._index = None
        if is_damage(error):
            try:
                remove_index(self._folder)
            except OSError as failure:
                self._note(f"A damaged index stays in {self._folder}: {reason(failure)}")

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)


def _unpacked(arrays: dict[str, mx.array], layout: str, found: Found) -> list[Any]:
    caches = packing.unpack(arrays, layout)
    if found.length < found.entry_length:
        packing.trim(caches, found.entry_length - found.length)
    mx.eval(packing.arrays_of(caches))
    return caches
