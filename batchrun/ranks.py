"""The processes that mlx.launch or mpirun started to run one model together: which of them this
one is, and what it tells the others.

All ranks must make the same calls here in the same order: one that waits for what another does not
send waits for ever. Where one goes astray, all end. Knows nothing of models or rows.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from batchrun import device
from batchrun.errors import BatchrunError, RunError

if TYPE_CHECKING:
    import mlx.core as mx
    import numpy.typing as npt

# How mlx.launch (ring, JACCL, NCCL) and Open MPI tell a process its rank.
_RANK_NAMES = ("MLX_RANK", "OMPI_COMM_WORLD_RANK")

# Far more than any step takes. The ring notices at once that a rank is gone; others may wait.
STUCK_SECONDS = 1800.0

# How much longer than it may a run that was told to end, or has to, can take.
LATE_SECONDS = 10


def launched_as() -> int | None:
    """This process's rank, None if nothing launched it as one. Takes no MLX to know."""
    told = (os.environ.get(name, "") for name in _RANK_NAMES)
    return next((int(rank) for rank in told if rank.isdecimal()), None)


class Ranks:
    """`size` processes, of which this is number `rank`; alone without a `group`.

    Rank 0 leads. `is_broken`: they are not in step any more, and nothing more can be said.
    """

    def __init__(self, group: mx.distributed.Group | None = None):
        self.group = group
        self.size: int = 1 if group is None else group.size()
        self.rank: int = 0 if group is None else group.rank()
        self.is_broken = False
        self._is_asked = False
        self._parent = os.getppid()
        self._now = 0.0

    @property
    def are_many(self) -> bool:
        return self.size > 1

    def share(self, value: Any = None, *, by: int = 0) -> Any:
        """What the rank `by` has as `value`, which must be JSON, on every rank. Raises RunError."""
        if not self.are_many:
            return value
        import numpy as np

        text = json.dumps(value).encode() if self.rank == by else b""
        # Sums, as no backend lacks them: all others add zeros.
        (length,) = self._sum(np.array([len(text)]))
        data = self._sum(np.frombuffer(text or bytes(length), np.uint8))
        return value if self.rank == by else json.loads(bytes(data))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, which must be JSON, in their order. Raises RunError."""
        return [self.share(value, by=rank) for rank in range(self.size)]

    def agree(self, array: mx.array) -> mx.array:
        """Rank 0's `array`, once it is computed; all ranks have one of that shape and type."""
        if not self.are_many:
            return array
        import mlx.core as mx

        # What the others add is nothing, but theirs: zeros of no origin would be sent early, before
        # the sums that their array waits for.
        mine = array if self.rank == 0 else array * 0
        return mx.distributed.all_sum(mine, group=self.group)

    def turn(self, order: int = 0) -> tuple[int, list[int]]:
        """Rank 0's `order` (0 or more) of this turn, and the ranks that are asked to end: by a
        signal, or rank 0 because what launched it is gone. Raises RunError."""
        if not self.are_many:
            return order, []
        import numpy as np

        if self.rank == 0:
            mine = [order, time.perf_counter_ns(), os.getppid() != self._parent]
        else:
            mine = [0, 0, self._is_asked << self.rank]
        with self.step():
            order, nanoseconds, asked = self._sum(np.array(mine))
        self._now = nanoseconds / 1e9
        return order, [rank for rank in range(self.size) if asked >> rank & 1]

    def clock(self) -> float:
        """Seconds since some moment, the same on all ranks between two turns."""
        return self._now if self.are_many else time.perf_counter()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Inside, all ranks compute together: what this one raises there, other than errors of ours
        that all of them have, is a RunError, and where they hang the process ends after
        STUCK_SECONDS."""
        if not self.are_many:
            yield
            return
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
        try:
            yield
        except BatchrunError:
            raise
        except Exception as error:
            raise self.fail(error) from error
        finally:
            faulthandler.cancel_dump_traceback_later()

    def fail(self, error: Exception) -> RunError:
        """What to raise as `error` came up in the middle of what all ranks do together. Those that
        follow end here: they have nothing to keep, and taking down what hangs can hang."""
        self.is_broken = True
        reason = f"{type(error).__name__}: {error}"
        failure = RunError(
            f"rank {self.rank} of {self.size} cannot go on ({reason}): see what the others say;"
            " the same command continues from here"
        )
        if self.rank:
            _end(failure)
        # MLX may hang and keep Python's lock, when no handler and no thread of Python runs.
        signal.alarm(LATE_SECONDS)
        return failure

    def dismiss(self) -> None:
        """Rank 0 needs the others no more: they get a None."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not self.is_broken:
            with suppress(RunError):
                self.share(None)

    @contextmanager
    def listening(self, grace: float) -> Iterator[None]:
        """For ranks that follow: inside, rank 0 is told of a first SIGTERM; a second one ends the
        process. Else as `watched`."""
        before = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            with self.watched(grace):
                yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def watched(self, grace: float) -> Iterator[None]:
        """Inside, a signal gives the block `grace` seconds and a few more to end, and then ends the
        process. One that waits in MLX for a rank that is gone may not hear of it, nor Python of a
        signal: what mlx.launch sends would do nothing."""
        if not self.are_many:
            yield
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        is_over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(reader, grace, is_over), daemon=True)
        watch.start()
        before = signal.set_wakeup_fd(writer)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            is_over.set()
            os.close(writer)
            watch.join()
            os.close(reader)

    def _watch(self, reader: int, grace: float, is_over: threading.Event) -> None:
        is_signal = os.read(reader, 1) != b""
        if is_signal and not is_over.wait(grace + LATE_SECONDS):
            _end(self.fail(TimeoutError("the others do not answer")))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._is_asked = True
        signal.signal(number, signal.SIG_DFL)

    def _sum(self, mine: npt.NDArray[Any]) -> list[int]:
        import mlx.core as mx

        if self.is_broken:
            raise RunError("the ranks are not in step any more; run the same command again")
        try:
            total = mx.distributed.all_sum(mx.array(mine), group=self.group, stream=mx.cpu)
            return [int(number) for number in total.tolist()]
        except RuntimeError as error:
            raise self.fail(error) from error


def _end(error: RunError) -> NoReturn:
    os.write(2, f"Error: {error}\n".encode())
    os._exit(1)


ALONE = Ranks()


@functools.cache
def join() -> Ranks:
    """Meet the other ranks, if this process was launched as one of several; later calls give the
    first answer. Raises RunError where they do not come in half a minute."""
    if launched_as() is None:
        return ALONE
    device.prepare()
    import mlx.core as mx

    try:
        ranks = Ranks(mx.distributed.init())
    except RuntimeError as error:
        raise RunError(
            f"rank {launched_as()} does not reach the others ({error}); see what they say, and"
            " that the addresses and ports given to mlx.launch are free and open"
        ) from error
    if ranks.rank == 0 and ranks.are_many:
        atexit.register(ranks.dismiss)
    return ranks
