"""Reading and preparing rows ahead of the engine, in a thread of its own, in bounded memory.

One thread does both for text: a second one gained nothing when measured, as templating holds
Python's lock, and tokenizers are only sure to be safe when called by one thread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Condition, Thread
from types import TracebackType
from typing import Generic, Self, TypeVar

S = TypeVar("S")
T = TypeVar("T")

_WAIT = 0.001
# Another call of the vision tower beside what waits for one: more would only wait there.
MAX_BYTES = 2**24


class Ahead(Generic[T]):
    """Iterates over `step(item)` for each item of `source`, in order, computed ahead.

    Yields None when nothing is ready within a few milliseconds, so that the consumer can go on
    with other work. At most `depth` items are read and not yet taken, and none is read while those
    hold `max_bytes` or more: `weigh` gives the sizes of what an item holds in bytes, by the `id` of
    the object, as items may share one. What `source` or `step` raises is raised to the consumer,
    after the items before it.

    Close it, or use it in a `with`, to stop early. A source that blocks does not hold up closing,
    nor the end of the process; the thread ends when the source gives its next item.
    """

    def __init__(
        self,
        source: Iterable[S],
        step: Callable[[S], T],
        *,
        depth: int,
        weigh: Callable[[T], Mapping[int, int]] = lambda _: {},
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._depth = depth
        self._weigh = weigh
        self._max_bytes = max_bytes
        self._held = _Held()
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._changed = Condition()
        Thread(target=self._work, args=(source, step), name="read-ahead", daemon=True).start()

    def __iter__(self) -> Iterator[T | None]:
        return self

    def __next__(self) -> T | None:
        with self._changed:
            if not self._ready and not self._ended:
                self._changed.wait(_WAIT)
            if self._ready:
                return self._take()
            if not self._ended:
                return None
            error, self._error = self._error, None
        raise error or StopIteration

    def close(self) -> None:
        """Stop; nothing more is read, and what was ready is dropped."""
        with self._changed:
            self._ended = True
            self._ready.clear()
            self._held = _Held()
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self) -> T:
        item = self._ready.popleft()
        was_full = self._held.nbytes >= self._max_bytes
        self._held.remove(self._weigh(item))
        # Woken only when half is gone, the thread works in stretches, not once for each item.
        if was_full or len(self._ready) == self._depth // 2:
            self._changed.notify_all()
        return item

    def _work(self, source: Iterable[S], step: Callable[[S], T]) -> None:
        error = None
        try:
            for item in source:
                self._put(step(item))
                if not self._wait_for_room():
                    break
        # Raised again to the consumer: here nobody would see it.
        except BaseException as raised:  # noqa: BLE001
            error = raised
        with self._changed:
            if not self._ended:
                self._error, self._ended = error, True
            self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """Whether there is more to do, once there is room for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._has_room())
            return not self._ended

    def _has_room(self) -> bool:
        return len(self._ready) < self._depth and self._held.nbytes < self._max_bytes

    def _put(self, item: T) -> None:
        with self._changed:
            if not self._ended:
                self._ready.append(item)
                self._held.add(self._weigh(item))
                self._changed.notify_all()


class _Held:
    """How much the items hold together, what they share counted once."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._holders: Counter[int] = Counter()

    def add(self, sizes: Mapping[int, int]) -> None:
        for key, nbytes in sizes.items():
            self.nbytes += 0 if self._holders[key] else nbytes
            self._holders[key] += 1

    def remove(self, sizes: Mapping[int, int]) -> None:
        for key, nbytes in sizes.items():
            self._holders[key] -= 1
            if not self._holders[key]:
                self.nbytes -= nbytes
                del self._holders[key]
