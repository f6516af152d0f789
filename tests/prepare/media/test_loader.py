"""Loading ahead: order, sharing, and bounds, seen with a reader that does what a test says."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable
from io import BytesIO
from pathlib import Path
from threading import Event, Lock

import pytest
from PIL import Image

from batchrun.errors import RowError
from batchrun.models.processor import Picture
from batchrun.prepare.media import Limits, MediaLoader, Reference
from batchrun.prepare.media import loader as loader_module
from batchrun.prepare.media.decoded import picture
from batchrun.prepare.media.faults import MediaFault

LONG = 30
SIDE = 10
NBYTES = 4 * SIDE * SIDE


class FakeReader:
    """Gives a picture for each name; "bad..." is a fault. `decoding` are those past `reserve`."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.read_names: list[str] = []
        self.decoding: list[str] = []
        self.hold: dict[str, Event] = {}
        self.files: list[weakref.ref[BytesIO]] = []
        self.num_looks = 0
        self.state = 0
        self.lock = Lock()

    def identity(self, medium: Reference) -> Hashable:
        if medium.value == "missing":
            raise MediaFault("media_not_found", "is not there", status=404)
        self.num_looks += 1
        return medium.value, self.state

    def read(self, medium: Reference, reserve: Callable[[int], None]) -> Picture:
        name = str(medium.value)
        file = BytesIO()
        with self.lock:
            self.files.append(weakref.ref(file))
            self.read_names.append(name)
        if name in self.hold:
            assert self.hold[name].wait(LONG)
        if name.startswith("bad"):
            raise MediaFault("invalid_image", f"is {name}")
        reserve(NBYTES)
        with self.lock:
            self.decoding.append(name)
        return picture(Image.new("RGB", (SIDE, SIDE), hash(name) % 2**24))


def media(*names: str) -> list[Reference]:
    return [Reference("image", name, Path(), f"part[{i}]") for i, name in enumerate(names)]


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader()


def loader(reader: FakeReader, **options: int) -> MediaLoader:
    return MediaLoader(reader, **options)  # type: ignore[arg-type]


def test_media_come_in_the_order_of_the_row_whichever_is_ready_first(reader: FakeReader) -> None:
    reader.hold["a"] = Event()
    loads = loader(reader)
    first, second = loads.start(media("a", "b", "c")), loads.start(media("c"))
    reader.hold["a"].set()
    found = first.take()
    assert [one.digest for one in found] == [
        loads.start(media(name)).take()[0].digest for name in ("a", "b", "c")
    ]
    assert second.take()[0] is found[2]


def test_rows_that_name_the_same_share_one_decoding(reader: FakeReader) -> None:
    loads = loader(reader)
    rows = [loads.start(media("a")) for _ in range(5)]
    pictures = [row.take()[0] for row in rows]
    assert all(one is pictures[0] for one in pictures)
    assert loads.start(media("a", "a")).take() == [pictures[0]] * 2
    assert reader.read_names == ["a"]


def test_a_file_is_looked_at_once_a_moment_and_found_to_be_another_later(
    reader: FakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(loader_module, "monotonic", lambda: now)
    loads = loader(reader)
    for _ in range(5):
        loads.start(media("a")).take()
    assert (reader.num_looks, reader.read_names) == (1, ["a"])
    reader.state = 1
    now += 1.0
    loads.start(media("a")).take()
    assert (reader.num_looks, reader.read_names) == (2, ["a", "a"])
    loads.start(media("b", "a")).take()
    assert (reader.num_looks, reader.read_names) == (4, ["a", "a", "b"])


def test_little_is_remembered(reader: FakeReader) -> None:
    loads = loader(reader, kept_bytes=2 * NBYTES)
    for name in ("a", "b", "c", "d", "d", "c", "a"):
        loads.start(media(name)).take()
    assert reader.read_names == ["a", "b", "c", "d", "a"]


@pytest.mark.parametrize(
    ("names", "param", "code"),
    [
        (("a", "bad 1"), "part[1]", "invalid_image"),
        (("bad 1", "a", "bad 2"), "part[0]", "invalid_image"),
        (("a", "missing"), "part[1]", "media_not_found"),
    ],
)
def test_one_fault_is_the_whole_rows_and_names_the_part(
    names: tuple[str, ...], param: str, code: str, reader: FakeReader
) -> None:
    loads = loader(reader)
    with pytest.raises(RowError) as caught:
        loads.start(media(*names)).take()
    assert (caught.value.param, caught.value.code) == (param, code)
    assert str(caught.value).startswith(f"{param} is ")
    assert loads.start(media("a")).take()


def test_the_same_fault_names_each_rows_own_part(reader: FakeReader) -> None:
    loads = loader(reader)
    rows = [loads.start(media("bad")), loads.start(media("a", "bad"))]
    params = []
    for row in rows:
        with pytest.raises(RowError) as caught:
            row.take()
        params.append(caught.value.param)
    assert params == ["part[0]", "part[1]"]


def test_a_fault_that_is_remembered_does_not_keep_the_file(reader: FakeReader) -> None:
    loads = loader(reader)
    for _ in range(2):
        with pytest.raises(RowError):
            loads.start(media("a", "bad")).take()
    gc.collect()
    assert reader.read_names == ["a", "bad"]
    assert [file() for file in reader.files] == [None, None]


def test_what_is_decoded_ahead_keeps_to_its_bytes(reader: FakeReader) -> None:
    loads = loader(reader, ahead_bytes=3 * NBYTES, kept_bytes=0, num_threads=4)
    names = [f"{number}" for number in range(40)]
    rows = [loads.start(media(name)) for name in names]
    for number, row in enumerate(rows):
        assert len(row.take()) == 1
        # Those taken, those that fit, and those that were let in on the way.
        assert len(reader.decoding) <= number + 1 + 3
    assert sorted(reader.decoding) == sorted(names)


def test_a_row_of_more_than_may_be_ahead_is_loaded_in_its_turn(reader: FakeReader) -> None:
    loads = loader(reader, ahead_bytes=NBYTES // 2, num_threads=2)
    rows = [loads.start(media(*(f"{row}.{i}" for i in range(6)))) for row in range(5)]
    assert [len(row.take()) for row in rows] == [6] * 5


def test_room_is_given_back_by_rows_at_fault_too(reader: FakeReader) -> None:
    loads = loader(reader, ahead_bytes=2 * NBYTES, kept_bytes=0)
    for number in range(10):
        with pytest.raises(RowError):
            loads.start(media(f"a{number}", "missing", f"bad {number}", f"b{number}")).take()
    assert loads._room._used == 0


def test_a_row_with_more_pixels_than_memory_is_refused() -> None:
    loads = loader(FakeReader(Limits(row_bytes=2 * NBYTES)))
    assert len(loads.start(media("a", "b")).take()) == 2
    with pytest.raises(RowError, match="more than 0 MB of pixels") as caught:
        loads.start(media("a", "b", "c")).take()
    assert (caught.value.param, caught.value.status) == ("part[2]", 413)


def test_closing_lets_what_waits_go_and_ends_the_threads(reader: FakeReader) -> None:
    loads = loader(reader, ahead_bytes=NBYTES, num_threads=2)
    rows = [loads.start(media(name)) for name in "abcdefgh"]
    loads.close()
    assert not any(thread.is_alive() for thread in loads._workers._threads)
    for row in rows:
        for _, job in row.parts:
            assert not isinstance(job, MediaFault)
            assert job.result.done()


def test_rows_that_were_started_together_leave_no_more_behind(reader: FakeReader) -> None:
    loads = loader(reader, kept_bytes=2 * NBYTES)
    for row in [loads.start(media(name)) for name in "abcdefgh"]:
        row.take()
    reader.read_names.clear()
    for name in "hgfa":
        loads.start(media(name)).take()
    assert reader.read_names == ["f", "a"]
