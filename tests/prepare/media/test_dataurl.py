from __future__ import annotations

import base64
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.prepare.media.dataurl import decode_data_url, is_data_url
from batchrun.prepare.media.faults import MediaFault

MOST = 1000


@given(st.binary(min_size=1, max_size=200), st.integers(1, 80))
def test_every_way_to_write_base64_gives_the_same_bytes(data: bytes, width: int) -> None:
    plain = base64.b64encode(data).decode()
    safe = base64.urlsafe_b64encode(data).decode()
    broken = "\r\n".join(textwrap.wrap(plain, width))
    for text in (plain, plain.rstrip("="), safe, safe.rstrip("="), broken, f" {broken}\n"):
        assert decode_data_url(f"data:image/png;base64,{text}", MOST) == data


@pytest.mark.parametrize(
    "head",
    ["data:image/jpg;base64", "DATA:;BASE64", "data:image/png;name=a.png;base64", "data:;base64"],
)
def test_the_type_that_it_names_does_not_matter(head: str) -> None:
    assert is_data_url(head)
    assert decode_data_url(f"{head},aGk=", MOST) == b"hi"


def test_escapes_of_urls_are_undone() -> None:
    assert decode_data_url("data:;base64,%2B%2F8%3D", MOST) == base64.b64decode("+/8=")
    assert decode_data_url("data:text/plain,a%20b", MOST) == b"a b"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png;base64", "without a comma"),
        ("data:image/png;base64,", "without data"),
        ("data:image/png;base64,****", "not valid base64"),
        ("data:image/png;base64,aGkaa", "not valid base64"),
        ("data:image/png;base64,aG=k", "not valid base64"),
    ],
)
def test_a_faulty_one_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(MediaFault, match=reason) as caught:
        decode_data_url(url, MOST)
    assert caught.value.code == "invalid_data_url"


@pytest.mark.parametrize("size", [MOST + 1, 10 * MOST])
def test_one_that_is_too_large_is_refused(size: int) -> None:
    url = f"data:;base64,{base64.b64encode(bytes(size)).decode()}"
    with pytest.raises(MediaFault) as caught:
        decode_data_url(url, MOST)
    assert (caught.value.code, caught.value.status) == ("media_too_large", 413)
