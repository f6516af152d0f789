from __future__ import annotations

import pytest

from batchrun.prepare.media.addresses import checked_addresses, is_public
from batchrun.prepare.media.faults import MediaFault


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_of_the_open_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "0.0.0.0"),
        *("169.254.169.254", "100.64.0.1", "198.18.0.1", "192.0.2.1", "224.0.0.1", "240.0.0.1"),
        *(
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fe80::1%eth0",
            "fc00::1",
            "fec0::1",
            "ff02::1",
        ),
        *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "::10.0.0.1", "2001:db8::1", "2001::1"),
        *("64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::"),
    ],
)
def test_all_others_are_not_also_where_they_are_wrapped(address: str) -> None:
    assert not is_public(address)


def test_a_name_with_one_private_address_is_refused() -> None:
    def resolve(host: str, port: int) -> list[str]:
        return ["8.8.8.8", "10.0.0.7"]

    with pytest.raises(MediaFault, match=r"10\.0\.0\.7, for a\.test, is no public") as caught:
        checked_addresses("a.test", 80, resolve, any_host=False)
    assert (caught.value.code, caught.value.status) == ("media_host_refused", 403)
    assert checked_addresses("a.test", 80, resolve, any_host=True) == ["8.8.8.8", "10.0.0.7"]


def test_an_address_that_is_refused_is_named_once() -> None:
    with pytest.raises(MediaFault, match=r"fetched: 10\.0\.0\.7 is no public"):
        checked_addresses("10.0.0.7", 80, lambda host, _: [host], any_host=False)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost"])
def test_odd_ways_to_write_this_machine_are_seen_through(host: str) -> None:
    from batchrun.prepare.media.addresses import resolve

    with pytest.raises(MediaFault) as caught:
        checked_addresses(host, 80, resolve, any_host=False)
    assert caught.value.code == "media_host_refused"


@pytest.mark.parametrize("error", [OSError("no name"), UnicodeError("label too long")])
def test_a_name_that_nobody_knows_is_said(error: Exception) -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise error

    with pytest.raises(MediaFault, match=r"a\.test is no known host") as caught:
        checked_addresses("a.test", 80, resolve, any_host=False)
    assert caught.value.code == "media_unreachable"
