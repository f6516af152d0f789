"""Data URLs: a file written into the row itself."""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from batchrun.prepare.media.faults import MediaFault, megabytes

_PREFIX = re.compile(r"data:", re.IGNORECASE)
_SPACE = re.compile(rb"\s+")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_CODE = "invalid_data_url"


def is_data_url(value: str) -> bool:
    return _PREFIX.match(value) is not None


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """The bytes in a data URL, whatever type of file it says they are.

    Base64 may lack its padding, be broken into lines, and use the alphabet of URLs.
    Raises MediaFault.
    """
    head, comma, data = url.partition(",")
    if not comma:
        raise MediaFault(_CODE, "is a data URL without a comma; write data:image/png;base64,DATA")
    if len(data) > 2 * max_bytes:
        raise too_large(max_bytes)
    words = [word.strip().lower() for word in head.split(";")]
    decoded = _decode(data) if "base64" in words[1:] else unquote_to_bytes(data)
    if not decoded:
        raise MediaFault(_CODE, "is a data URL without data")
    if len(decoded) > max_bytes:
        raise too_large(max_bytes)
    return decoded


def too_large(max_bytes: int) -> MediaFault:
    return MediaFault(
        "media_too_large",
        f"is larger than {megabytes(max_bytes)}; make it smaller",
        status=413,
    )


def _decode(data: str) -> bytes:
    # Also %2B for +, as in the URLs of a browser.
    packed = _SPACE.sub(b"", unquote_to_bytes(data)).translate(_URL_SAFE).rstrip(b"=")
    try:
        return base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except binascii.Error as error:
        raise MediaFault(_CODE, f"is not valid base64 ({error}); encode the file again") from error
