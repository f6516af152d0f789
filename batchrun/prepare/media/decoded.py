"""Images and videos as pixels, known by their content."""

from __future__ import annotations

from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING

from batchrun.models.processor import Clip, Picture

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

Decoded = Picture | Clip

_STRIP = 256
_THUMBNAIL = 96  # pixels of its longer side


def picture(image: Image) -> Picture:
    """Its digest is of mode, size and pixels: the same bytes in another shape are another image."""
    digest = sha256(f"{image.mode} {image.width} {image.height} ".encode())
    # By strips, as a large image would be in memory twice.
    for top in range(0, image.height, _STRIP):
        bottom = min(top + _STRIP, image.height)
        digest.update(image.crop((0, top, image.width, bottom)).tobytes())
    return Picture(image, digest.digest(), _thumbnail(image))


def _thumbnail(image: Image) -> bytes:
    """A JPEG of a few kB. The shape stays, but for a strip that would be thinner than a pixel."""
    from PIL.Image import Resampling

    scale = min(1.0, _THUMBNAIL / max(image.size))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    file = BytesIO()
    small = image.resize(size, Resampling.BOX, reducing_gap=1.0)
    small.save(file, "JPEG", quality=70)
    return file.getvalue()


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
