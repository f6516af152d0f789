"""Image files of every kind -> RGB pixels, or the reason why not."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from batchrun.models.processor import Picture
from batchrun.prepare.media.faults import MediaFault
from batchrun.prepare.media.picture import decode_picture
from tests.prepare.media.builders import encoded, noise

MOST = 50 * 10**6
ORIENTATION = 0x0112


def decode(data: bytes, max_pixels: int = MOST) -> Picture:
    return decode_picture(data, max_pixels, lambda nbytes: None)


def fault_of(data: bytes, max_pixels: int = MOST) -> MediaFault:
    with pytest.raises(MediaFault) as caught:
        decode(data, max_pixels)
    return caught.value


def pixels(picture: Picture) -> np.ndarray:
    assert picture.image.mode == "RGB"
    return np.asarray(picture.image)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "TGA", "ICO", "PCX", "SGI"])
def test_what_keeps_every_pixel_gives_every_pixel(kind: str) -> None:
    image = noise(32, 20)
    options = {"sizes": [(32, 20)]} if kind == "ICO" else {}
    assert decode(encoded(image, kind, **options)).digest == decode(encoded(image)).digest
    assert np.array_equal(pixels(decode(encoded(image, kind, **options))), np.asarray(image))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF", "JPEG2000", "AVIF"])
def test_other_kinds_are_read_too(kind: str) -> None:
    flat = Image.new("RGB", (40, 30), (200, 40, 60))
    found = pixels(decode(encoded(flat, kind)))
    assert found.shape == (30, 40, 3)
    assert np.abs(found.astype(int) - (200, 40, 60)).max() < 12


def test_each_of_eight_orientations_is_made_upright() -> None:
    image = noise(30, 20)
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    for orientation, stored in turns.items():
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        data = encoded(image.transpose(stored), exif=exif.tobytes())
        assert np.array_equal(pixels(decode(data)), np.asarray(image)), orientation


def test_what_is_transparent_is_white() -> None:
    clear = Image.new("RGBA", (2, 1), (10, 20, 30, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    assert pixels(decode(encoded(clear))).tolist() == [[[255, 255, 255], [10, 20, 30]]]
    half = Image.new("RGBA", (1, 1), (0, 0, 0, 127))
    assert pixels(decode(encoded(half)))[0, 0].tolist() == [128, 128, 128]


@pytest.mark.parametrize("mode", ["LA", "P", "L", "RGB", "1"])
def test_transparency_of_every_mode_is_white(mode: str) -> None:
    if mode == "LA":
        data = encoded(Image.new("LA", (3, 3), (0, 0)))
    else:
        black = (0, 0, 0) if mode == "RGB" else 0
        data = encoded(Image.new(mode, (3, 3), black), transparency=black)
    assert pixels(decode(data)).min() == 255


def test_a_palette_becomes_its_colours() -> None:
    image = Image.new("RGB", (4, 4), (1, 2, 3))
    image.putpixel((0, 0), (250, 120, 7))
    packed = image.quantize(4)
    assert packed.mode == "P"
    found = pixels(decode(encoded(packed)))
    assert found[0, 0].tolist() == [250, 120, 7]
    assert found[3, 3].tolist() == [1, 2, 3]


def test_cmyk_becomes_rgb() -> None:
    ink = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    red, green, blue = pixels(decode(encoded(ink, "JPEG", quality=95)))[8, 8].tolist()
    assert red > 200
    assert max(green, blue) < 60


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_grey_of_16_bits_keeps_its_shades(kind: str) -> None:
    levels = np.array([[0, 257, 32768, 65535]], np.uint16)
    found = pixels(decode(encoded(Image.fromarray(levels), kind)))
    assert found[0, :, 0].tolist() == [0, 1, 128, 255]


def test_fractions_from_0_to_1_are_shades_and_others_are_refused() -> None:
    shades = Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32))
    assert pixels(decode(encoded(shades, "TIFF")))[0, :, 0].tolist() == [0, 128, 255]
    heat = Image.fromarray(np.array([[-3.0, 900.0]], np.float32))
    assert "pixels from -3 to 900" in fault_of(encoded(heat, "TIFF")).problem


@pytest.mark.parametrize("mode", ["1", "L"])
def test_black_and_white_and_grey_are_three_equal_channels(mode: str) -> None:
    found = pixels(decode(encoded(noise(9, 7, "L").convert(mode))))
    assert (found == found[..., :1]).all()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert pixels(decode(data))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000"])
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_file_that_is_cut_off_is_refused(kind: str, share: float) -> None:
    data = encoded(noise(120, 90), kind)
    assert fault_of(data[: int(len(data) * share)]).code == "invalid_image"


def test_a_jpeg_without_its_last_bytes_is_refused() -> None:
    for image in (noise(64, 64), Image.new("RGB", (64, 64), "red")):
        fault = fault_of(encoded(image, "JPEG")[:-128])
        assert fault.problem.lower().startswith("is a damaged image: ")
        assert "truncated" in fault.problem.lower()


def broken_chunk(name: bytes) -> bytes:
    """A PNG in which one chunk's checksum, and nothing else, is wrong."""
    data = bytearray(encoded(noise(20, 20)))
    start = data.index(name)
    (length,) = struct.unpack(">I", data[start - 4 : start])
    data[start + 4 + length] ^= 1
    return bytes(data)


@pytest.mark.parametrize("name", [b"IHDR", b"IDAT"])
def test_a_png_with_a_wrong_checksum_is_refused(name: bytes) -> None:
    assert fault_of(broken_chunk(name)).code == "invalid_image"


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_refused_and_crash_nothing(data: bytes) -> None:
    assert fault_of(data).code == "invalid_image"


@settings(max_examples=60)
@given(st.data())
def test_damage_anywhere_is_refused_or_does_not_show(data: st.DataObject) -> None:
    good = bytearray(encoded(noise(20, 20), data.draw(st.sampled_from(["PNG", "GIF", "TIFF"]))))
    good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(MediaFault):  # anything else that is raised is a failure
        assert decode(bytes(good)).image.mode == "RGB"


def test_a_web_page_is_refused_by_what_it_begins_with() -> None:
    fault = fault_of(b"<!DOCTYPE html><html><body>404</body></html>")
    assert fault.problem == "is no image that can be read: it begins with '<!DOCTYPE html><'"


def test_postscript_which_pillow_has_run_by_another_program_is_refused() -> None:
    target = BytesIO()
    noise(8, 8).save(target, "EPS")
    assert "is no image that can be read" in fault_of(target.getvalue()).problem


def one_bit_png(width: int, height: int) -> bytes:
    """Some 100 KB of file for any size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)

    packer = zlib.compressobj(9)
    line = bytes(1 + (width + 7) // 8)
    rows = b"".join(packer.compress(line) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.parametrize("side", [8_000, 12_000, 30_000])
def test_a_huge_image_in_a_small_file_is_refused_by_its_header(side: int) -> None:
    data = one_bit_png(side, side)
    tracemalloc.start()
    try:
        fault = fault_of(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (fault.code, fault.status) == ("media_too_large", 413)
    assert "more than 50 megapixels" in fault.problem
    assert peak < len(data) + 10**6


def test_a_jpeg_of_thousands_of_passes_is_refused() -> None:
    target = BytesIO()
    Image.new("RGB", (16, 16), "red").save(target, "JPEG", progressive=True)
    data = target.getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    assert decode(data[:-2] + 100 * last + data[-2:]).image.size == (16, 16)
    fault = fault_of(data[:-2] + 2000 * last + data[-2:])
    assert (fault.code, fault.status) == ("media_too_large", 413)


def test_an_image_at_the_limit_is_read_and_its_size_is_told_before() -> None:
    data, asked = encoded(noise(20, 10)), []
    decode_picture(data, 200, asked.append)
    assert asked == [12 * 20 * 10]
    assert "20 x 10 pixels, which is more than 0.000199 megapixels" in fault_of(data, 199).problem


def test_the_digest_tells_sizes_apart_that_have_the_same_bytes() -> None:
    wide, high = (decode(encoded(Image.new("RGB", size, "red"))) for size in ((150, 30), (30, 150)))
    assert wide.image.tobytes() == high.image.tobytes()
    assert wide.digest != high.digest


def test_the_digest_tells_colours_apart_and_knows_the_same_again() -> None:
    red, blue = (encoded(Image.new("RGB", (9, 9), colour)) for colour in ("red", "blue"))
    assert decode(red).digest != decode(blue).digest
    assert decode(red).digest == decode(red).digest
    assert len(decode(red).digest) == 32


@pytest.mark.parametrize(
    ("size", "shown"),
    [((400, 100), (96, 24)), ((40, 30), (40, 30)), ((1, 5_000), (1, 96))],
)
def test_people_get_a_small_jpeg(size: tuple[int, int], shown: tuple[int, int]) -> None:
    thumbnail = decode(encoded(noise(*size), "PNG")).thumbnail
    image = Image.open(BytesIO(thumbnail), formats=["JPEG"])

    assert image.size == shown
    assert len(thumbnail) < 12_000
