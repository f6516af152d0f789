"""What media parts name, and columns of media, without looking at any medium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchrun.config import SourceConfig
from batchrun.errors import RowError, UsageError
from batchrun.records import Failure, Request
from batchrun.source import kept_schema, parquet, read_requests
from batchrun.source.fields import Body
from batchrun.source.files import RawRow
from batchrun.source.messages import read_messages
from batchrun.source.parts import media_source

ASK = {"type": "text", "text": "what?"}


def read(path: Path, **options: Any) -> list[Request | Failure]:
    return list(read_requests(SourceConfig(inputs=(str(path),), **options)))


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def contents(rows: list[Request | Failure]) -> list[Any]:
    """The last message's content of each row, or its error's code."""
    return [
        row.error.code if isinstance(row, Failure) else (row.messages or [])[-1]["content"]
        for row in rows
    ]


def fault_of(path: Path, **options: Any) -> RowError:
    (row,) = read(path, **options)
    assert isinstance(row, Failure)
    return row.error


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}, "image"),
        ({"type": "image_url", "image_url": "a.png"}, "image"),
        ({"type": "input_image", "image_url": "a.png", "detail": "auto"}, "image"),
        ({"type": "image", "image": "a.png"}, "image"),
        ({"type": "image", "image": " a.png\n"}, "image"),
        ({"type": "image", "url": "a.png"}, "image"),
        ({"type": "image", "path": "a.png"}, "image"),
        ({"type": "image", "image": {"path": "a.png"}}, "image"),
        ({"type": "image", "image": {"bytes": None, "path": "a.png"}}, "image"),
        ({"type": "video_url", "video_url": {"url": "a.png"}}, "video"),
        ({"type": "video", "video": "a.png"}, "video"),
    ],
)
def test_every_usual_form_names_its_file(part: dict[str, Any], kind: str) -> None:
    assert media_source(part) == (kind, "a.png")
    messages = [{"role": "user", "content": [part]}]
    assert read_messages(Body({"messages": messages})) == messages


def test_bytes_go_before_the_path_that_they_came_from() -> None:
    part = {"type": "image", "image": {"bytes": b"png", "path": "a.png"}}
    assert media_source(part) == ("image", b"png")


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image_url"}, "names no image"),
        ({"type": "image"}, "names no image"),
        ({"type": "image_url", "image_url": ""}, "empty image"),
        ({"type": "image_url", "image_url": {"url": ""}}, "empty image"),
        ({"type": "image_url", "image_url": {"url": " "}}, "empty image"),
        ({"type": "image_url", "image_url": {}}, "empty image"),
        ({"type": "image_url", "image_url": {"url": {"url": "a"}}}, "empty image"),
        ({"type": "image_url", "image_url": {"url": 5}}, "URL, a path or bytes"),
        ({"type": "image", "image": b""}, "empty image"),
        ({"type": "image", "image": ["a.png"]}, "URL, a path or bytes"),
        ({"type": "image", "image": "a", "url": "b"}, "both image and url"),
        ({"type": "video", "video": ["a.png", "b.png"]}, "URL, a path or bytes"),
        ({"type": "video", "video": ""}, "empty video"),
    ],
)
def test_a_part_that_names_nothing_is_the_rows_error(part: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason) as caught:
        read_messages(Body({"messages": [{"role": "user", "content": [ASK, part]}]}, "body."))
    assert caught.value.param == "body.messages[0].content[1]"


@pytest.mark.parametrize("kind", ["input_audio", "file", "image_file", "images", ""])
def test_parts_of_an_unknown_type_are_the_rows_error(kind: str) -> None:
    with pytest.raises(RowError) as caught:
        read_messages(Body({"messages": [{"role": "user", "content": [{"type": kind}]}]}))
    assert caught.value.code == "unsupported_content"
    assert caught.value.param == "messages[0].content[0].type"


@pytest.mark.parametrize("name", ["images", "videos"])
def test_no_images_beside_the_messages_are_harmless_and_some_are_not(
    name: str, tmp_path: Path
) -> None:
    row = {"messages": [{"role": "user", "content": "hi"}]}
    path = lines(tmp_path / "a.jsonl", *(row | {name: value} for value in ([], None, ["a.png"])))
    assert contents(read(path)) == ["hi", "hi", "unsupported_parameter"]
    assert contents(read(path, prompt="{{ messages[0].content }}")) == ["hi"] * 3


def test_a_column_is_put_before_the_text_of_the_template(tmp_path: Path) -> None:
    values = ["a.png", None, ["a.png", None, "b.png"], [], {"path": "c.png"}]
    path = lines(tmp_path / "a.jsonl", *({"pic": value, "q": "what?"} for value in values))
    found = contents(read(path, prompt="{{ q }}", images=("pic",)))
    a, b, c = ({"type": "image", "image": f"{name}.png"} for name in "abc")
    assert found == [[a, ASK], "what?", [a, b, ASK], "what?", [c, ASK]]


def test_images_come_before_videos_and_in_the_order_of_the_flags(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"x": "x.png", "y": "y.png", "v": "v.mp4"})
    (content,) = contents(read(path, prompt="what?", images=("y", "x"), videos=("v",)))
    assert content == [
        {"type": "image", "image": "y.png"},
        {"type": "image", "image": "x.png"},
        {"type": "video", "video": "v.mp4"},
        ASK,
    ]


def test_without_a_template_it_goes_into_the_first_user_message(tmp_path: Path) -> None:
    turns = [("system", "s"), ("user", "one"), ("assistant", "a"), ("user", "two")]
    messages = [{"role": role, "content": text} for role, text in turns]
    path = lines(tmp_path / "a.jsonl", {"messages": messages, "images": ["a.png"]})
    (row,) = read(path, images=("images",))
    assert isinstance(row, Request)
    assert row.messages is not None
    assert row.messages[1]["content"] == [
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": "one"},
    ]
    assert [message["content"] for message in row.messages[2:]] == ["a", "two"]


def test_parts_that_name_nothing_are_the_places_for_it(tmp_path: Path) -> None:
    place = {"type": "image"}
    row = {"messages": [{"role": "user", "content": [place, ASK, place]}]}
    path = lines(
        tmp_path / "a.jsonl", *(row | {"pics": pics} for pics in (["a", "b"], ["a"], None))
    )
    found = contents(read(path, images=("pics",)))
    assert found[0] == [{"type": "image", "image": "a"}, ASK, {"type": "image", "image": "b"}]
    assert found[1:] == ["invalid_request", "invalid_request"]
    assert contents(read(path)) == ["invalid_request"] * 3


@pytest.mark.parametrize(
    ("row", "code", "param"),
    [
        ({"q": "x"}, "missing_column", "pic"),
        ({"pic": "", "q": "x"}, "invalid_request", "pic"),
        ({"pic": 5, "q": "x"}, "invalid_request", "pic"),
        ({"pic": [["a"]], "q": "x"}, "invalid_request", "pic"),
        ({"pic": {}, "q": "x"}, "invalid_request", "pic"),
    ],
)
def test_a_row_without_its_image_is_a_fault(
    row: dict[str, Any], code: str, param: str, tmp_path: Path
) -> None:
    error = fault_of(lines(tmp_path / "a.jsonl", row), prompt="{{ q }}", images=("pic",))
    assert (error.code, error.param) == (code, param)


def test_a_completion_has_no_place_for_an_image(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"prompt": "x", "pic": "a.png"})
    assert fault_of(path, images=("pic",)).param == "prompt"
    assert contents(read(path, prompt="{{ prompt }}", images=("pic",)))[0][0]["image"] == "a.png"


def test_messages_without_a_user_have_no_place_for_an_image(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl", {"messages": [{"role": "system", "content": "x"}], "pic": "a.png"}
    )
    assert "no user message" in str(fault_of(path, images=("pic",)))


def test_an_empty_cell_of_a_csv_is_no_image(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("pic,q\na.png,what?\n,what?\n")
    found = contents(read(path, prompt="{{ q }}", images=("pic",)))
    assert found == [[{"type": "image", "image": "a.png"}, ASK], "what?"]


@pytest.mark.parametrize("flag", ["images", "videos"])
def test_a_column_that_no_table_has_stops_the_run(flag: str, tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", q=["x"])
    with pytest.raises(UsageError, match=f"--{flag[:-1]} pic: no such column"):
        read(path, prompt="{{ q }}", **{flag: ("pic",)})


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_bytes_of_every_type_of_column_arrive(type_: pa.DataType, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"pic": pa.array([b"png", None], type_), "q": ["what?"] * 2}), path)
    found = contents(read(path, prompt="{{ q }}", images=("pic",)))
    assert found == [[{"type": "image", "image": b"png"}, ASK], "what?"]


def test_a_struct_within_messages_is_read(tmp_path: Path) -> None:
    content = [
        {"type": "image", "image": {"bytes": b"png", "path": None}, "text": None},
        {"type": "text", "image": None, "text": "what?"},
    ]
    path = table(tmp_path / "a.parquet", messages=[[{"role": "user", "content": content}]])
    assert contents(read(path)) == [[{"type": "image", "image": {"bytes": b"png"}}, ASK]]


def test_all_columns_but_media_are_kept_unless_named(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", pic=[b"png"], q=["what?"], id=[7])
    options: dict[str, Any] = {"prompt": "{{ q }}", "images": ("pic",)}
    for keep, names in ((None, ["q", "id"]), (("pic", "id"), ["pic", "id"])):
        (row,) = read(path, keep=keep, **options)
        assert list(row.row.kept) == names
        schema = kept_schema(SourceConfig(inputs=(str(path),), keep=keep, **options))
        assert schema is not None
        assert schema.names == names


def test_only_the_columns_in_use_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "a.parquet", pic=[b"png"], q=["what?"], heavy=[b"x" * 100])
    asked: list[Any] = []
    whole = parquet.read

    def noted(path: str, columns: list[str] | None = None) -> Iterator[RawRow]:
        asked.append(columns)
        return whole(path, columns)

    monkeypatch.setattr(parquet, "read", noted)
    read(path, prompt="{{ q }}", images=("pic",))
    assert asked == [["pic", "q"]]


@pytest.mark.parametrize(
    ("source", "url"),
    [
        (
            {"type": "base64", "media_type": "image/png", "data": "aGk="},
            "data:image/png;base64,aGk=",
        ),
        ({"type": "url", "url": "https://host/a.png"}, "https://host/a.png"),
    ],
)
def test_anthropics_image_blocks_become_parts(
    source: dict[str, Any], url: str, tmp_path: Path
) -> None:
    block = {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}}
    params = {"max_tokens": 5, "messages": [{"role": "user", "content": [block, ASK]}]}
    path = lines(tmp_path / "a.jsonl", {"custom_id": "c", "params": params})
    assert contents(read(path)) == [[{"type": "image_url", "image_url": {"url": url}}, ASK]]


@pytest.mark.parametrize(
    ("source", "param"),
    [
        (None, ".source"),
        ("a.png", ".source"),
        ({"type": "file", "file_id": "f"}, ".source.type"),
        ({"type": ["url"]}, ".source.type"),
        ({"type": "base64", "media_type": "image/png"}, ".source.data"),
        ({"type": "url", "url": ""}, ".source.url"),
    ],
)
def test_anthropics_faulty_image_blocks_are_named(source: Any, param: str, tmp_path: Path) -> None:
    block = {"type": "image", "source": source}
    params = {"max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}
    error = fault_of(lines(tmp_path / "a.jsonl", {"custom_id": "c", "params": params}))
    assert error.param == f"params.messages[0].content[0]{param}"
