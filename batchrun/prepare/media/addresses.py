"""Which addresses of the network a row may make this machine connect to.

Whoever writes a row chooses its URLs: they must not reach what only this machine can reach.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from batchrun.prepare.media.faults import MediaFault

Resolve = Callable[[str, int], list[str]]

# What is given out of IPv6 (RFC 4291); all else is for special use.
_UNICAST = IPv6Network("2000::/3")
# Translators put an IPv4 address into its last 32 bits (RFC 6052).
_NAT64 = IPv6Network("64:ff9b::/96")


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, in the order to try them. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def checked_addresses(host: str, port: int, resolve: Resolve, *, any_host: bool) -> list[str]:
    """The addresses of `host`; all must be public unless `any_host`.

    To connect to what is returned, and not to the name, keeps a name from meaning something else
    by then. Raises MediaFault.
    """
    try:
        addresses = resolve(host, port)
    except (OSError, UnicodeError) as error:
        raise MediaFault(
            "media_unreachable", f"cannot be fetched: {host} is no known host ({error})"
        ) from error
    private = [address for address in addresses if not is_public(address)]
    if private and not any_host:
        found = host if host == private[0] else f"{private[0]}, for {host},"
        raise MediaFault(
            "media_host_refused",
            f"cannot be fetched: {found} is no public address; --allow-private-hosts lets it",
            status=403,
        )
    return addresses


def is_public(address: str) -> bool:
    """Whether an address is one of the open internet, also where another is hidden in it."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        hidden = _hidden(found)
        if hidden is None:
            return found in _UNICAST and found.is_global
        found = hidden
    return found.is_global and not (found.is_multicast or found.is_reserved)


def _hidden(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to, if any."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
