from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchrun.prepare.media.faults import MediaFault
from batchrun.prepare.media.localfile import file_id, local_path, opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a é.png").write_bytes(b"image")
    (root / "sub" / "b.png").write_bytes(b"other")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "c.png").write_bytes(b"secret")
    return root


def fault_of(value: str, root: Path) -> MediaFault:
    with pytest.raises(MediaFault) as caught, opened(local_path(value, root), 100):
        pass
    return caught.value


def content(value: str, root: Path) -> bytes:
    with opened(local_path(value, root), 100) as file:
        return file.read()


@pytest.mark.parametrize(
    "value",
    ["a é.png", "./a é.png", "sub/../a é.png", "{root}/a é.png", "file://{root}/a%20%C3%A9.png"],
)
def test_a_file_below_the_root_is_read_however_it_is_named(value: str, root: Path) -> None:
    assert content(value.format(root=root), root) == b"image"


def test_links_below_the_root_are_followed(root: Path) -> None:
    (root / "link.png").symlink_to(root / "sub" / "b.png")
    assert content("link.png", root) == b"other"


def test_a_root_that_is_a_link_itself_is_fine(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert content("sub/b.png", tmp_path / "alias") == b"other"
    assert content(str(root / "sub" / "b.png"), tmp_path / "alias") == b"other"


@pytest.mark.parametrize(
    "value",
    [
        "../secret.png",
        "{root}/../secret.png",
        "file://{root}/../secret.png",
        "/etc/passwd",
        "../root2/c.png",
        "file:///etc/passwd",
        ".",
    ],
)
def test_a_path_out_of_the_root_is_refused(value: str, root: Path) -> None:
    assert fault_of(value.format(root=root), root).code in ("media_path_refused",)


@pytest.mark.parametrize("through", ["file", "folder"])
def test_a_link_out_of_the_root_is_refused(through: str, root: Path, tmp_path: Path) -> None:
    (root / "file").symlink_to(tmp_path / "secret.png")
    (root / "folder").symlink_to(tmp_path)
    value = "file" if through == "file" else "folder/secret.png"
    assert fault_of(value, root).code == "media_path_refused"


def test_a_path_that_leaves_a_link_upwards_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (root / "into").symlink_to(tmp_path / "deep")
    assert fault_of("into/../secret.png", root).code == "media_path_refused"


def test_pipes_and_folders_are_refused(root: Path) -> None:
    os.mkfifo(root / "pipe.png")
    assert fault_of("pipe.png", root).code == "media_path_refused"
    assert fault_of("sub", root).code == "media_path_refused"


def test_devices_are_refused() -> None:
    assert fault_of("/dev/zero", Path("/")).code == "media_path_refused"


@pytest.mark.parametrize("value", ["none.png", "sub/b.png/x.png", "file:///none.png"])
def test_a_missing_file_is_said(value: str, root: Path) -> None:
    fault = fault_of(value, root)
    assert (fault.code, fault.status) == ("media_not_found", 404)


@pytest.mark.parametrize(
    ("value", "reason"),
    [("iVBORw0KGgo" * 500, "base64 needs data:image/png"), ("a\x00b", "cannot be read")],
)
def test_what_cannot_be_a_path_is_said(value: str, reason: str, root: Path) -> None:
    fault = fault_of(value, root)
    assert reason in fault.problem
    assert len(fault.problem) < 250


def test_a_link_to_itself_is_a_fault(root: Path) -> None:
    (root / "loop").symlink_to(root / "loop")
    assert fault_of("loop", root).code == "media_unreadable"


def test_empty_and_large_files_are_refused(root: Path) -> None:
    (root / "empty.png").touch()
    (root / "large.png").write_bytes(bytes(101))
    assert "is empty" in fault_of("empty.png", root).problem
    assert fault_of("large.png", root).code == "media_too_large"


def test_a_file_of_another_machine_is_refused(root: Path) -> None:
    assert fault_of("file://host/a.png", root).code == "invalid_url"
    assert content(f"file://localhost{root}/sub/b.png", root) == b"other"


def test_a_file_that_was_written_again_is_another(root: Path) -> None:
    path = local_path("sub/b.png", root)
    before = file_id("sub/b.png", root)
    assert file_id("sub/b.png", root) == before
    path.write_bytes(b"longer than before")
    assert file_id("sub/b.png", root) != before


def test_a_file_of_the_same_size_and_time_in_its_place_is_another(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    known = []
    for content in (b"red", b"blu"):
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))
        known.append(file_id("a.png", tmp_path))
    assert known[0] != known[1]


def test_a_link_that_leads_elsewhere_by_now_is_another_file(tmp_path: Path) -> None:
    link = tmp_path / "link.png"
    known = []
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"same")
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        known.append(file_id("link.png", tmp_path))
    assert known[0] != known[1]
