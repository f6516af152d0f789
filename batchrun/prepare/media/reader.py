"""What a part names -> its pixels: from a data URL, the web, a file, or bytes in the row."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import IO

from batchrun.config import MediaConfig
from batchrun.prepare.media.clip import decode_clip
from batchrun.prepare.media.dataurl import decode_data_url, is_data_url, too_large
from batchrun.prepare.media.decoded import Decoded
from batchrun.prepare.media.download import Downloader, is_web_url
from batchrun.prepare.media.faults import MediaFault
from batchrun.prepare.media.limits import Limits
from batchrun.prepare.media.localfile import file_id, local_path, opened
from batchrun.prepare.media.picture import decode_picture
from batchrun.prepare.media.storefile import fetch, url_below
from batchrun.source.parts import MediaKind

# Called with the bytes that decoding is about to take; may take its time.
Reserve = Callable[[int], None]

_SCHEME = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reference:
    """One image or video that a row names: a URL, a data URL or a path below `root`, or the bytes
    of the file. `root` is the URL of a folder elsewhere if it is text; `param` is the dotted path
    of the part."""

    kind: MediaKind
    value: str | bytes
    root: Path | str
    param: str


class MediaReader:
    """Reads and decodes media. `download` is for tests."""

    def __init__(
        self,
        config: MediaConfig | None = None,
        limits: Limits | None = None,
        download: Downloader | None = None,
    ) -> None:
        config = config or MediaConfig()
        self.limits = limits or Limits()
        self._fps = config.video_fps
        self._download = download or Downloader(self.limits, config.allow_private_hosts)

    def identity(self, medium: Reference) -> Hashable:
        """The same for what is the same file in the same state, and for the same URL.

        Raises MediaFault for a file that is not there.
        """
        value = medium.value
        if isinstance(value, str) and is_web_url(value):
            return medium.kind, value
        if isinstance(value, str) and not is_data_url(value):
            if isinstance(medium.root, str):
                return medium.kind, url_below(value, medium.root)
            return medium.kind, file_id(_checked(value), medium.root)
        data = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        return medium.kind, sha256(data).digest()

    def read(self, medium: Reference, reserve: Reserve) -> Decoded:
        """The medium's pixels. Raises MediaFault, and what `reserve` raises."""
        try:
            return self._decoded(medium, reserve)
        except OSError as error:
            reason = error.strerror or str(error)
            raise MediaFault("media_unreadable", f"cannot be read: {reason}") from error

    def _decoded(self, medium: Reference, reserve: Reserve) -> Decoded:
        if medium.kind == "image":
            return decode_picture(self._image_bytes(medium), self.limits.image_pixels, reserve)
        with self._video_file(medium) as path:
            return decode_clip(path, self._fps, self.limits, reserve)

    def _image_bytes(self, medium: Reference) -> bytes:
        most = self.limits.image_bytes
        target = BytesIO()
        if not self._copy(medium, target, most):
            with opened(_path(medium), most) as file:
                return file.read(most)
        return target.getvalue()

    @contextmanager
    def _video_file(self, medium: Reference) -> Iterator[Path]:
        """A file with the video, gone afterwards where it was not one before."""
        most = self.limits.video_bytes
        # Private to this user, as temporary files are.
        with tempfile.NamedTemporaryFile(prefix="batchrun-") as target:
            if self._copy(medium, target, most):
                target.flush()
                if not os.path.getsize(target.name):
                    raise MediaFault("invalid_video", "is empty; give a video file")
                yield Path(target.name)
                return
        path = _path(medium)
        with opened(path, most):
            yield path

    def _copy(self, medium: Reference, target: IO[bytes], most: int) -> bool:
        """Whether what the part names is now in `target`; else it is a file of its own."""
        value = medium.value
        if isinstance(value, bytes):
            if len(value) > most:
                raise too_large(most)
            target.write(value)
        elif is_data_url(value):
            target.write(decode_data_url(value, most))
        elif is_web_url(value):
            self._download.fetch(value, target, most)
        elif isinstance(medium.root, str):
            fetch(url_below(value, medium.root), target, most, self.limits.seconds)
        else:
            return False
        return True


def _path(medium: Reference) -> Path:
    return local_path(_checked(str(medium.value)), Path(medium.root))


def _checked(value: str) -> str:
    if _SCHEME.match(value):
        scheme = value.partition("://")[0]
        raise MediaFault(
            "invalid_url",
            f"has a URL that begins with {scheme}://; use https, or name a folder there with"
            " --media-root",
        )
    return value
