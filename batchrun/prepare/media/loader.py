"""Media of the rows to come, fetched and decoded ahead by a few threads.

Rows that name the same file, bytes or URL within reach of one another share one decoding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic

from batchrun.errors import RowError
from batchrun.prepare.media.decoded import Decoded, num_bytes
from batchrun.prepare.media.faults import MediaFault, megabytes
from batchrun.prepare.media.reader import MediaReader, Reference
from batchrun.prepare.media.workers import Room, Workers

_THREADS = 8
# Decoded ahead of the rows' turn, and kept after it for rows that name the same again.
_AHEAD_BYTES = 2**29
_KEPT_BYTES = 2**27
_MAX_KEPT = 64
_HOLDS_SECONDS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    """What rows call a medium, and its identity, which is not looked at again before `until`."""

    name: tuple[object, ...]
    identity: Hashable
    until: float


@dataclass(eq=False, slots=True)
class _Job:
    """A medium on its way. `num_rows` parts wait for it; `reserved` bytes are its share of room,
    `nbytes` what the medium takes, 0 where there is none."""

    num_rows: int = 0
    reserved: int = 0
    nbytes: int = 0
    is_wanted: bool = False
    result: Future[Decoded | MediaFault] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class Loading:
    """The media of one row, on their way. `take` them once."""

    loader: MediaLoader
    parts: tuple[tuple[str, _Job | MediaFault], ...]

    def take(self) -> list[Decoded]:
        """The media in order, waited for. Raises RowError for the first that is at fault."""
        return self.loader.take(self.parts)


class MediaLoader:
    """Loads with `reader`. `ahead_bytes` bounds what is decoded before its row's turn comes, and
    `kept_bytes` what is remembered after. Started and taken by any threads; rows are to be taken
    in the order in which they were started."""

    def __init__(
        self,
        reader: MediaReader,
        *,
        num_threads: int = _THREADS,
        ahead_bytes: int = _AHEAD_BYTES,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self._reader = reader
        self._workers = Workers(num_threads)
        self._room = Room(ahead_bytes)
        self._kept_bytes = kept_bytes
        self._recent: OrderedDict[Hashable, _Job] = OrderedDict()
        self._lock = Lock()
        self._latest: _Named | None = None

    def start(self, media: list[Reference]) -> Loading:
        """Begin to load a row's media."""
        return Loading(self, tuple((medium.param, self._job(medium)) for medium in media))

    def take(self, parts: tuple[tuple[str, _Job | MediaFault], ...]) -> list[Decoded]:
        media: list[Decoded] = []
        error: RowError | None = None
        for param, job in parts:
            # After a fault the rest is waited for all the same: its room has to be given back.
            medium = self._finished(job)
            if error is not None:
                continue
            if isinstance(medium, MediaFault):
                error = medium.at(param)
                continue
            media.append(medium)
            error = self._too_much(media, param)
        if error is not None:
            raise error
        return media

    def close(self) -> None:
        """Stop: what is not finished is dropped."""
        self._room.close()
        self._workers.close()

    def _job(self, medium: Reference) -> _Job | MediaFault:
        try:
            identity = self._identity(medium)
        except MediaFault as fault:
            return fault.bare()
        with self._lock:
            job = self._recent.get(identity)
            if job is None:
                job = self._recent[identity] = _Job()
                self._submit(job, medium)
            self._recent.move_to_end(identity)
            job.num_rows += 1
        return job

    def _submit(self, job: _Job, medium: Reference) -> None:
        def reserve(nbytes: int) -> None:
            self._room.take(nbytes, lambda: job.is_wanted)
            job.reserved = nbytes

        def read() -> Decoded | MediaFault:
            try:
                decoded = self._reader.read(medium, reserve)
            except MediaFault as fault:
                return fault.bare()
            # What was needed on the way is free again.
            job.nbytes = num_bytes(decoded)
            working, job.reserved = job.reserved, min(job.reserved, job.nbytes)
            self._room.give_back(working - job.reserved)
            return decoded

        job.result = self._workers.submit(read)

    def _identity(self, medium: Reference) -> Hashable:
        """The latest one holds for a moment: with several questions on an image, each further look
        at the disk would only be a wait for Python's lock."""
        latest, now = self._latest, monotonic()
        name = (medium.kind, medium.value, medium.root)
        if latest is None or latest.name != name or now >= latest.until:
            latest = _Named(name, self._reader.identity(medium), now + _HOLDS_SECONDS)
            self._latest = latest
        return latest.identity

    def _finished(self, job: _Job | MediaFault) -> Decoded | MediaFault:
        if isinstance(job, MediaFault):
            return job
        job.is_wanted = True
        self._room.ask_again()
        try:
            return job.result.result()
        finally:
            self._leave(job)

    def _leave(self, job: _Job) -> None:
        with self._lock:
            job.num_rows -= 1
            if job.num_rows:
                return
            if job.reserved:
                self._room.give_back(job.reserved)
                job.reserved = 0
            self._forget()

    def _too_much(self, media: list[Decoded], param: str) -> RowError | None:
        most = self._reader.limits.row_bytes
        if sum(map(num_bytes, media)) <= most:
            return None
        problem = f"brings the row's media to more than {megabytes(most)} of pixels; send fewer"
        return MediaFault("media_too_large", problem, status=413).at(param)

    def _forget(self) -> None:
        """Let the oldest that no row waits for go, until the rest keeps to its bytes."""
        unused = {name: job.nbytes for name, job in self._recent.items() if not job.num_rows}
        nbytes, count = sum(unused.values()), len(unused)
        for identity in unused:
            if nbytes <= self._kept_bytes and count <= _MAX_KEPT:
                return
            nbytes, count = nbytes - unused[identity], count - 1
            del self._recent[identity]
