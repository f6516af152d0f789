"""Which texts are URLs, what their parts are, and what is secret in them.

A password or a signed query is taken out of a URL as soon as it comes in (`given`), and looked up
again only to open it: what goes about in the program, its reports and its messages has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from batchrun.errors import UsageError

_URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_WEB = ("http", "https")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*@")
_QUERY = re.compile(r"(?<=\w)(://[^\s?'\"]*)\?[^\s'\")]*")

# Of URLs whose query was taken out: how each was given.
_GIVEN: dict[str, str] = {}
# What stood before a host: "user:password@", by what it stood in.
_USERS: dict[str, str] = {}


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """For another process: whole URLs by how they are shown, and "user:password@" by host."""

    given: dict[str, str]
    users: dict[str, str]


def is_url(text: str) -> bool:
    """Whether a text names a file elsewhere; file:// URLs are made paths by `given`."""
    return _URL.match(text) is not None


def is_web(url: str) -> bool:
    return scheme(url) in _WEB


def scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def given(text: str) -> str:
    """What a user named, as it goes on from here: the path of a file:// URL, another URL without
    what is secret in it, and anything else as it is. Raises UsageError."""
    if not is_url(text) or text in _GIVEN:
        return text
    if scheme(text) == "file":
        return _path(text)
    shown = _PASSWORD.sub("", text, count=1)
    if "::" in shown:
        raise UsageError(f"{without_secrets(text)}: names one store in another; name one alone")
    if shown != text:
        _remember(_USERS, host(shown), _PASSWORD.findall(text)[0])
    if is_web(text) and "?" in text:
        digest = sha256(shown.encode(errors="surrogatepass")).hexdigest()[:8]
        sealed = f"{shown.partition('?')[0]}?{digest}"
        _GIVEN[sealed] = shown
        return sealed
    return shown


def here(text: str) -> Path:
    """The file here that a user named. Raises UsageError where it is elsewhere."""
    named = given(text)
    if is_url(named):
        raise UsageError(f"{named}: has to be a file on this machine")
    return Path(named)


def opened(url: str) -> str:
    """The whole of a URL that `given` gave."""
    whole = _GIVEN.get(url, url)
    user = _USERS.get(host(whole), "")
    return whole.replace("://", f"://{user}", 1)


def secrets() -> Secrets:
    """What `given` has taken out of URLs so far."""
    return Secrets(dict(_GIVEN), dict(_USERS))


def learn(known: Secrets) -> None:
    """Makes `opened` know what another process was given."""
    _GIVEN.update(known.given)
    _USERS.update(known.users)


def without_secrets(text: str) -> str:
    """A message in which a URL may stand as it was opened."""
    for user in _USERS.values():
        text = text.replace(user, "")
    return _QUERY.sub(r"\1", _PASSWORD.sub("", text))


def name_of(path: str) -> str:
    """A URL's last part, without its query; of a path all of it."""
    if not is_url(path):
        return path
    whole = path.partition("?")[0] if is_web(path) else path
    return whole.rstrip("/").rpartition("/")[2]


def parent(url: str) -> str:
    """The folder of what a URL names, with a slash at its end."""
    whole = url.partition("?")[0] if is_web(url) else url
    return whole.rstrip("/").rpartition("/")[0] + "/"


def beside(named: str, change: Callable[[Path], Path]) -> str:
    """The neighbour of a path or URL whose name is as `change` makes it."""
    if not is_url(named):
        return str(change(Path(named)))
    return parent(named) + change(Path(name_of(named))).name


def _path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{url}: names a file on another machine, {parts.netloc}")
    return url2pathname(url.partition("://")[2].removeprefix(parts.netloc))


def host(url: str) -> str:
    """A URL's beginning, up to where the path in the store begins."""
    return "/".join(url.split("/", 3)[:3])


def _remember(known: dict[str, str], host: str, user: str) -> None:
    if known.setdefault(host, user) != user:
        raise UsageError(f"{host}: is named with two users; name one")
