"""Files elsewhere: what a URL names, read and written through fsspec.

    urls.py     which texts are URLs, and what is secret in them
    store.py    the few things that are asked of a store, and its errors as one line
    mirror.py   outputs: a folder here for what is at a URL, fetched before and published after

Paths of this machine never come here but for `open_binary`, which opens both. Credentials are those
that fsspec and the store's driver find by themselves.
"""

from batchrun.remote.mirror import Mirror, Place, borrowed, lent, place
from batchrun.remote.store import StoreError, files_in, kind, matching, open_binary
from batchrun.remote.urls import beside, given, is_url, is_web, name_of, parent

__all__ = [
    "Mirror",
    "Place",
    "StoreError",
    "beside",
    "borrowed",
    "files_in",
    "given",
    "is_url",
    "is_web",
    "kind",
    "lent",
    "matching",
    "name_of",
    "open_binary",
    "parent",
    "place",
]
