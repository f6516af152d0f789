"""Images and videos as pixels, known by their content."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from batchrun.models.processor import Clip, Picture

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

Decoded = Picture | Clip

_STRIP = 256


def picture(image: Image) -> Picture:
    """Its digest is of mode, size and pixels: the same bytes in another shape are another image."""
    digest = sha256(f"{image.mode} {image.width} {image.height} ".encode())
    # By strips, as a large image would be in memory twice.
    for top in range(0, image.height, _STRIP):
        bottom = min(top + _STRIP, image.height)
        digest.update(image.crop((0, top, image.width, bottom)).tobytes())
    return Picture(image, digest.digest())


def clip(frames: npt.NDArray[np.uint8], fps: float) -> Clip:
    """frames: (frames, height, width, 3), RGB, of which `fps` were taken a second."""
    digest = sha256(f"clip {frames.shape} {fps!r} ".encode())
    digest.update(frames.data)
    return Clip(frames, fps, digest.digest())


def num_bytes(medium: Decoded) -> int:
    if isinstance(medium, Clip):
        return int(medium.frames.nbytes)
    # Pillow takes 4 bytes for the 3 of a pixel.
    return 4 * medium.image.width * medium.image.height
