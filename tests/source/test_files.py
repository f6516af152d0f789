from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchrun.errors import RunError, UsageError
from batchrun.source.files import kind_of, open_bytes, resolve_inputs

LINES = b'{"prompt": "a"}\n' * 1000


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def read(path: str) -> bytes:
    with open_bytes(path) as stream:
        return stream.read()


def test_globs_are_sorted_and_inputs_keep_their_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "z.csv", "notes.txt"):
        (tmp_path / name).write_text("")
    found = resolve_inputs((f"{tmp_path}/z.csv", "-", f"{tmp_path}/*.jsonl"))
    names = [Path(path).name for path in found]
    assert names == ["z.csv", "-", "a.jsonl", "b.jsonl"]


def test_recursive_glob_leaves_directories_out(tmp_path: Path) -> None:
    (tmp_path / "a" / "b.jsonl").mkdir(parents=True)
    (tmp_path / "a" / "c.jsonl").write_text("")
    assert resolve_inputs((f"{tmp_path}/**/*.jsonl",)) == [f"{tmp_path}/a/c.jsonl"]


def test_name_with_glob_characters_is_taken_literally(tmp_path: Path) -> None:
    path = write(tmp_path / "data[1].jsonl", LINES)
    assert resolve_inputs((path,)) == [path]


@pytest.mark.parametrize("name", ["nothing.jsonl", "*.jsonl"])
def test_missing_file_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no such file"):
        resolve_inputs((f"{tmp_path}/{name}",))


def test_no_input_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no input"):
        resolve_inputs(())


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.csv", "c.jsonl.gz", ".hidden.jsonl", "_meta.jsonl", "notes.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"{}\n") if name.endswith("gz") else b"{}\n")
    (tmp_path / "d.jsonl").mkdir()
    found = resolve_inputs((str(tmp_path),))

    assert [Path(path).name for path in found] == ["a.csv", "b.jsonl", "c.jsonl.gz"]


def test_a_folder_without_data_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UsageError, match=r"folder without any file of \.jsonl"):
        resolve_inputs((str(tmp_path),))


def test_stdin_twice_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="only once"):
        resolve_inputs(("-", "-"))


def test_closed_stdin_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="closed"):
        resolve_inputs(("-",))


@pytest.mark.parametrize("name", ["rows.txt", "rows", "rows.gz", "rows.txt.zst", ".jsonl"])
def test_unknown_extension_lists_the_kinds(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, b"")
    with pytest.raises(UsageError, match=r"\.jsonl.*\.parquet.*\.csv"):
        resolve_inputs((path,))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("-", "jsonl"),
        ("a.jsonl", "jsonl"),
        ("a.NDJSON", "jsonl"),
        ("a.v2.json.GZ", "jsonl"),
        ("a.jsonl.zst", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.csv.gz", "csv"),
        ("a.Tsv", "tsv"),
    ],
)
def test_kind_is_by_extension(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_pipe_without_extension_is_jsonl(tmp_path: Path) -> None:
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    assert resolve_inputs((path,)) == [path]
    assert kind_of(path) == "jsonl"


def test_json_array_is_a_usage_error_with_remedy(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", b'\xef\xbb\xbf \n[{"prompt": "a"}]')
    with pytest.raises(UsageError, match=r"array.*jq -c '\.\[\]'"):
        resolve_inputs((path,))


def test_json_file_of_lines_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", LINES)
    assert resolve_inputs((path,)) == [path]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("data", [b"", LINES])
def test_compressed_in_name_only_is_a_usage_error(tmp_path: Path, name: str, data: bytes) -> None:
    path = write(tmp_path / name, data)
    with pytest.raises(UsageError, match=r"is not (gzip|zstd) data"):
        resolve_inputs((path,))


def test_file_that_is_not_parquet_is_a_usage_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", LINES)
    with pytest.raises(UsageError, match=r"a\.parquet: is not a Parquet file"):
        resolve_inputs((path,))


def test_parquet_cut_off_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match="without its end"):
        resolve_inputs((str(path),))


def test_compressed_parquet_is_a_usage_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet.gz", gzip.compress(b"PAR1"))
    with pytest.raises(UsageError, match="decompress"):
        resolve_inputs((path,))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_gzip_is_read_by_name_and_by_content(tmp_path: Path, name: str) -> None:
    assert read(write(tmp_path / name, gzip.compress(LINES))) == LINES


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_zstd_is_read_by_name_and_by_content(tmp_path: Path, name: str) -> None:
    assert read(write(tmp_path / name, zstd(LINES))) == LINES


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_joined_compressed_files_are_read_whole(tmp_path: Path, compress) -> None:
    path = write(tmp_path / "a.jsonl", compress(LINES) + compress(b"{}\n"))
    assert read(path) == LINES + b"{}\n"


@pytest.mark.parametrize(("compress", "suffix"), [(gzip.compress, "gz"), (zstd, "zst")])
@pytest.mark.parametrize("cut", [1, 12])
def test_compressed_data_cut_off_fails_naming_the_file(
    tmp_path: Path, compress, suffix: str, cut: int
) -> None:
    path = write(tmp_path / f"a.jsonl.{suffix}", compress(LINES)[:-cut])
    with pytest.raises(RunError, match=rf"a\.jsonl\.{suffix}: cannot be read to its end"):
        read(path)


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_junk_behind_compressed_data_fails_naming_the_file(tmp_path: Path, compress) -> None:
    path = write(tmp_path / "a.jsonl", compress(LINES) + b"junk")
    with pytest.raises(RunError, match=r"a\.jsonl"):
        read(path)


def test_file_gone_in_the_meantime_fails_naming_the_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"gone\.jsonl"):
        read(str(tmp_path / "gone.jsonl"))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd])
def test_stdin_is_read_and_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress
) -> None:
    with open(write(tmp_path / "in", compress(LINES))) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert read("-") == LINES
        assert os.fstat(stdin.fileno())


def test_lines_of_a_slow_stdin_come_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with open(read_end) as stdin, open(write_end, "wb", buffering=0) as pipe:
        monkeypatch.setattr("sys.stdin", stdin)
        pipe.write(b"one\n")
        with open_bytes("-") as stream:
            assert stream.readline() == b"one\n"
            pipe.write(b"two\n")
            assert stream.readline() == b"two\n"
            pipe.write(b"thr")
            pipe.write(b"ee")
            pipe.close()
            assert stream.read() == b"three"


@pytest.mark.parametrize("name", ["photo.jpg", "clip.mp4"])
def test_pictures_and_videos_as_input_are_told_where_they_go(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")

    for given in (tmp_path, tmp_path / name):
        with pytest.raises(UsageError, match=r"in a column of such a file, which --image or"):
            resolve_inputs((str(given),))
