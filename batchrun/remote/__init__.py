"""Files elsewhere: what a URL names, read and written through fsspec.

    urls.py      which texts are URLs, and what is secret in them
    store.py     the few things that are asked of a store, and its errors as one line
    stream.py    a file elsewhere, read bit by bit
    waiting.py   for so long and no longer
    places.py    where outputs go, and the folder here for each folder elsewhere
    mirror.py    outputs: what is at a URL, fetched before a run and published after
    lending.py   one file, or output, for as long as a command takes

Where a path may come too, it goes through as it is, so that nobody else has to ask. Credentials are
those that fsspec and the store's driver find by themselves.
"""

from batchrun.remote.lending import borrowed, lent
from batchrun.remote.mirror import Mirror
from batchrun.remote.places import Place, folder_for, place
from batchrun.remote.store import (
    StoreError,
    check_driver,
    files_in,
    kind,
    matching,
    upload,
)
from batchrun.remote.stream import open_binary
from batchrun.remote.urls import (
    Secrets,
    beside,
    given,
    here,
    is_url,
    is_web,
    learn,
    name_of,
    parent,
    secrets,
)
from batchrun.remote.waiting import within

__all__ = [
    "Mirror",
    "Place",
    "Secrets",
    "StoreError",
    "beside",
    "borrowed",
    "check_driver",
    "files_in",
    "folder_for",
    "given",
    "here",
    "is_url",
    "is_web",
    "kind",
    "learn",
    "lent",
    "matching",
    "name_of",
    "open_binary",
    "parent",
    "place",
    "secrets",
    "upload",
    "within",
]
