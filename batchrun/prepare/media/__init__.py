"""Images and videos that rows name -> pixels, within limits and safely.

Knows nothing of models, nor of what becomes of the pixels.
"""

from __future__ import annotations

from batchrun.prepare.media.decoded import Decoded
from batchrun.prepare.media.limits import Limits
from batchrun.prepare.media.loader import Loading, MediaLoader
from batchrun.prepare.media.reader import MediaReader, Reference
from batchrun.prepare.media.references import without_media

__all__ = [
    "Decoded",
    "Limits",
    "Loading",
    "MediaLoader",
    "MediaReader",
    "Reference",
    "without_media",
]
