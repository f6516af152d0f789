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


def picture(image: Image) -> Picture:
    """Its digest is of mode, size and pixels: the same bytes in another shape are another image."""
    digest = sha256(f"{image.mode} {image.width} {image.height} ".encode())
    digest.update(image.tobytes())
    return Picture(image, digest.digest())


def clip(frames: npt.NDArray[np.uint8], fps: float) -> Clip:
    """frames: (frames, height, width, 3), RGB, of which `fps` were taken a second."""
    digest = sha256(f"clip {frames.shape} {fps!r} ".encode())
    digest.update(frames.data)
    return Clip(frames, fps, digest.digest())


def num_bytes(medium: Decoded) -> int:
    if isinstance(medium, Clip):
        return int(medium.frames.nbytes)
    return 3 * medium.image.width * medium.image.height
