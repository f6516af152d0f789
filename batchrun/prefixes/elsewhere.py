"""Prefixes at a URL, for all machines that share it: one object each.

Its name says of it all that an index has, the tokens aside; these are known by the key, which is
their hash. What is there stays until somebody removes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from batchrun.prefixes.blocks import count, key_of
from batchrun.prefixes.index import Entry
from batchrun.remote import StoreError, files_in, name_of, open_binary, upload, within

_NAME = re.compile(
    r"(?P<key>[0-9a-f]{40})-(?P<length>\d{1,9})-(?P<nbytes>\d{1,15})-(?P<milliseconds>\d{1,12})-"
    r"(?P<cut>[cw])-(?P<digest>[0-9a-f]{64})\.safetensors",
    re.ASCII,
)
_LIST_SECONDS = 20.0
_FETCH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A prefix at `url`: as `index.Entry` has it. Only with `is_trimmable` may a part be used."""

    url: str
    key: str
    length: int
    nbytes: int
    digest: str
    seconds: float
    is_trimmable: bool


class Elsewhere:
    """The prefixes of one model, its fingerprint, below the folder `url`.

    Nothing raises because of the store: after the first failure it is asked no more, and `note` is
    told why. `put` may be called from another thread than all else.
    """

    def __init__(self, url: str, model: str, note: Callable[[str], None]) -> None:
        self._folder = f"{url}{model}/"
        self._note = note
        self._is_usable = True
        self._kept: dict[str, Kept] = {}
        try:
            files = within(_LIST_SECONDS, lambda: files_in(self._folder))
        except StoreError as error:
            self._give_up(error)
        else:
            found = (_read_name(file) for file in files)
            self._kept = {kept.key: kept for kept in found if kept is not None}

    def longest(self, hashes: list[bytes], tokens: bytes, longer_than: int) -> Kept | None:
        """The longest prefix there, of more than so many tokens, that `tokens`, whose chain is
        `hashes`, begins with."""
        if not self._is_usable:
            return None
        most = count(tokens)
        lengths = {kept.length for kept in self._kept.values()}
        for length in sorted(lengths, reverse=True):
            if longer_than < length <= most:
                kept = self._kept.get(key_of(hashes, tokens, length))
                if kept is not None and kept.length == length:
                    return kept
        return None

    def fetch(self, kept: Kept) -> bytes | None:
        """The file's content; None if it is gone or damaged, or the store cannot be used."""
        try:
            data = within(_FETCH_SECONDS, lambda: _content(kept.url, kept.nbytes))
        except StoreError as error:
            if not error.is_missing:
                self._give_up(error)
                return None
            data = b""
        if hashlib.sha256(data).hexdigest() == kept.digest:
            return data
        fault = "damaged" if data else "gone"
        self._note(f"A stored prefix is {fault} at {self._folder}; it is computed again")
        self._kept.pop(kept.key, None)
        return None

    def put(self, entry: Entry, path: Path, *, is_trimmable: bool) -> None:
        """Brings the file of an entry there, unless it is."""
        if not self._is_usable or entry.key in self._kept:
            return
        name = (
            f"{entry.key}-{entry.length}-{entry.nbytes}-{round(entry.seconds * 1000)}-"
            f"{'c' if is_trimmable else 'w'}-{entry.digest}.safetensors"
        )
        try:
            upload(path, self._folder + name)
        except StoreError as error:
            self._give_up(error)

    def _give_up(self, error: StoreError) -> None:
        self._is_usable = False
        self._note(f"Prefixes at {self._folder} are not used any more: {error}")


def _read_name(url: str) -> Kept | None:
    match = _NAME.fullmatch(name_of(url))
    if match is None:
        return None
    return Kept(
        url=url,
        key=match["key"],
        length=int(match["length"]),
        nbytes=int(match["nbytes"]),
        digest=match["digest"],
        seconds=int(match["milliseconds"]) / 1000,
        is_trimmable=match["cut"] == "c",
    )


def _content(url: str, nbytes: int) -> bytes:
    with open_binary(url) as file:
        return file.read(nbytes + 1)
