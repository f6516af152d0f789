"""URLs told from paths, taken apart, and kept without what is secret in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from batchrun.errors import UsageError
from batchrun.remote import urls
from batchrun.remote.urls import (
    beside,
    given,
    here,
    is_url,
    learn,
    name_of,
    opened,
    parent,
    secrets,
    without_secrets,
)


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_GIVEN", {})
    monkeypatch.setattr(urls, "_USERS", {})


@pytest.mark.parametrize("text", ["in.jsonl", "/data/a:b/c.jsonl", "-", "C:/x", "a/b://c", ""])
def test_a_path_is_no_url_and_stays(text: str) -> None:
    assert not is_url(text)
    assert given(text) == text
    assert name_of(text) == text


@pytest.mark.parametrize("text", ["s3://b/in.jsonl", "S3://b/x", "hf://datasets/a/b@main/c.csv"])
def test_a_url_without_secrets_stays(text: str) -> None:
    assert is_url(text)
    assert given(text) == opened(given(text)) == text


def test_a_file_url_is_a_path() -> None:
    assert given("file:///data/a%20b?.jsonl") == "/data/a b?.jsonl"
    assert given("file://localhost/data/a.jsonl") == "/data/a.jsonl"
    with pytest.raises(UsageError, match="another machine, host"):
        given("file://host/data/a.jsonl")


def test_a_password_is_taken_out_and_found_again_for_its_neighbours() -> None:
    shown = given("ftp://me:pass@host/in/a.jsonl")

    assert shown == "ftp://host/in/a.jsonl"
    assert opened(shown) == "ftp://me:pass@host/in/a.jsonl"
    assert opened(beside(shown, lambda path: path.with_suffix(".csv"))).startswith("ftp://me:pass@")
    assert opened("ftp://other/in/a.jsonl") == "ftp://other/in/a.jsonl"
    assert without_secrets("no host me:pass@host") == "no host host"
    with pytest.raises(UsageError, match="two users"):
        given("ftp://you:word@host/in/a.jsonl")


def test_a_container_before_a_host_is_no_secret() -> None:
    assert given("abfs://container@account/in.jsonl") == "abfs://container@account/in.jsonl"


def test_the_query_of_a_web_url_is_taken_out() -> None:
    one, other = (given(f"https://host/in.jsonl?sig={word}") for word in ("one", "other"))

    assert one.startswith("https://host/in.jsonl?")
    assert one != other
    assert "one" not in one
    assert opened(one) == "https://host/in.jsonl?sig=one"
    assert given(one) == one
    assert name_of(one) == "in.jsonl"
    assert parent(one) == "https://host/"


@drawn(st.text("abcdef0123456789%=&", min_size=9), st.text("ghijkl", min_size=6))
def test_no_secret_is_in_what_goes_on(query: str, password: str) -> None:
    urls._USERS.clear()
    whole = f"https://me:{password}@host/dir/x.csv?{query}"
    shown = given(whole)

    assert opened(shown) == whole
    for text in (shown, without_secrets(f"403, url='{whole}' (and {whole})")):
        assert query not in text
        assert f":{password}" not in text


def test_a_question_mark_in_a_store_is_a_letter_of_a_glob() -> None:
    assert given("s3://b/part-?.jsonl") == "s3://b/part-?.jsonl"
    assert name_of("s3://b/part-?.jsonl") == "part-?.jsonl"


def test_one_store_in_another_is_refused() -> None:
    with pytest.raises(UsageError, match="name one alone"):
        given("zip://x.jsonl::s3://b/a.zip")


def test_neighbours_are_named_alike_here_and_elsewhere() -> None:
    def report(path: Path) -> Path:
        return path.with_name(path.stem + ".report.json")

    assert beside("out/a.parquet", report) == str(Path("out/a.report.json"))
    assert beside("s3://b/out/a.parquet", report) == "s3://b/out/a.report.json"
    assert beside("s3://b/labels/", report) == "s3://b/labels.report.json"


def test_another_process_opens_what_this_one_was_given() -> None:
    shown = [given("https://host/in.jsonl?sig=one"), given("ftp://me:pass@host/in.jsonl")]
    known = secrets()
    assert "one" not in repr(known)
    assert "pass" not in repr(known)

    urls._GIVEN.clear()
    urls._USERS.clear()
    assert list(map(opened, shown)) == shown
    learn(known)
    assert list(map(opened, shown)) == [
        "https://host/in.jsonl?sig=one",
        "ftp://me:pass@host/in.jsonl",
    ]


def test_a_file_that_has_to_be_here(tmp_path: Path) -> None:
    assert here("a/b.toml") == Path("a/b.toml")
    assert here(f"file://{tmp_path}/b.toml") == tmp_path / "b.toml"
    with pytest.raises(UsageError, match=r"^s3://b/x: has to be a file on this machine$"):
        here("s3://user:secret@b/x")
