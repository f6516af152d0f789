"""Bytes of an image file -> Picture: complete, upright, RGB, on white.

The header is looked at first, so that an image that is too large costs nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, _imaging
from PIL.JpegImagePlugin import JpegImageFile

from batchrun.models.processor import Picture
from batchrun.prepare.media.decoded import picture
from batchrun.prepare.media.faults import MediaFault

_CODE = "invalid_image"
# Pillow reads these by running another program.
_REFUSED_FORMATS = {"EPS"}
# Ten are usual; each costs a hundredth of a second or so of a large image.
_MAX_SCANS = 1000
_WHITE = (255, 255, 255)
# For each pixel while it is decoded: the file's own image, what is made of it, and a mask.
_WORKING_BYTES = 12

# Pillow takes memory for large images in blocks, of 16 MB by itself: of that size the C library
# keeps those of each thread, and several GB pile up. Larger ones go back to the system at once.
_imaging.set_block_size(2**26)

# What Pillow warns of is either harmless or refused here, with a reason and the row's name.
warnings.filterwarnings("ignore", module=r"PIL\.")


def decode_picture(data: bytes, max_pixels: int, reserve: Callable[[int], None]) -> Picture:
    """The image in `data`, of animations the first frame; `reserve` is called with the bytes that
    decoding it takes before that is done. Raises MediaFault.

    The rotation that EXIF gives is applied, and what is transparent becomes white.
    """
    if not data:
        raise MediaFault(_CODE, "is empty; give an image file")
    with _faults(data, max_pixels):
        size = _checked_size(data, max_pixels)
    reserve(_WORKING_BYTES * size[0] * size[1])
    with _faults(data, max_pixels):
        return picture(_upright_rgb(_loaded(data, max_pixels)))


@contextmanager
def _faults(data: bytes, max_pixels: int) -> Iterator[None]:
    # Pillow raises what it likes on files that are damaged.
    try:
        yield
    except MediaFault:
        raise
    except UnidentifiedImageError as error:
        raise MediaFault(
            _CODE, f"is no image that can be read: it begins with {_beginning(data)}"
        ) from error
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(max_pixels) from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise MediaFault(_CODE, f"is a damaged image: {reason}") from error


def _checked_size(data: bytes, max_pixels: int) -> tuple[int, int]:
    with _opened(data) as image:
        _check_size(image, max_pixels)
        _check_scans(image, data)
        # Of PNG files this alone compares the checksums; the image cannot be used after.
        image.verify()
        return image.size


def _loaded(data: bytes, max_pixels: int) -> Image.Image:
    image = _opened(data)
    image.load()
    # Files of several images may have hidden a larger one.
    _check_size(image, max_pixels)
    return image


def _opened(data: bytes) -> Image.Image:
    return Image.open(BytesIO(data), formats=_formats())


@cache
def _formats() -> list[str]:
    Image.init()
    return [name for name in Image.ID if name not in _REFUSED_FORMATS]


def _check_size(image: Image.Image, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        raise _too_many_pixels(max_pixels, f"{image.width} x {image.height} pixels, which is ")


def _check_scans(image: Image.Image, data: bytes) -> None:
    # One of 75 bytes costs a pass over all pixels: 20 MB of them would take hours. What a camera
    # writes beside the pixels may have a scan's two bytes by chance.
    if isinstance(image, JpegImageFile) and data.count(b"\xff\xda") > _MAX_SCANS:
        raise MediaFault(
            "media_too_large",
            f"is a JPEG of more than {_MAX_SCANS:,} scans; save it again",
            status=413,
        )


def _too_many_pixels(max_pixels: int, size: str = "") -> MediaFault:
    return MediaFault(
        "media_too_large",
        f"has {size}more than {max_pixels / 10**6:g} megapixels; make it smaller",
        status=413,
    )


def _beginning(data: bytes) -> str:
    return repr(data[:16].decode("ascii", "replace"))


def _upright_rgb(image: Image.Image) -> Image.Image:
    ImageOps.exif_transpose(image, in_place=True)
    if image.has_transparency_data:
        return _on_white(image if image.mode == "RGBA" else image.convert("RGBA"))
    if image.mode in _RANGES or image.mode == "F":
        return _scaled(image).convert("RGB")
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    page = Image.new("RGB", image.size, _WHITE)
    page.paste(image, mask=image.getchannel("A"))
    return page


# Grey of more than 8 bits; Pillow's own conversion would clip it.
_RANGES = {"I;16": 65535, "I;16L": 65535, "I;16B": 65535, "I;16N": 65535, "I": 65535}


def _scaled(image: Image.Image) -> Image.Image:
    """A grey image of many levels, or of fractions, in 256 levels."""
    pixels: np.ndarray[Any, Any] = np.asarray(image, np.float64)
    top = _RANGES.get(image.mode, 1)
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= top):
        raise MediaFault(
            _CODE,
            f"has pixels from {low:g} to {high:g}, and not from 0 to {top}; save it with 8 bits",
        )
    return Image.fromarray(np.rint(pixels * (255 / top)).astype(np.uint8))
