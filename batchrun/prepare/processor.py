"""What this room asks of a vision model's processor."""

from __future__ import annotations

from typing import Any, Protocol

from batchrun.models.parts import Processed
from batchrun.models.processor import Clip, Picture


class Processor(Protocol):
    """`identity` is of all settings that decide what becomes of an image."""

    @property
    def identity(self) -> str: ...

    @property
    def takes_video(self) -> bool: ...

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The conversation as text, by the model's chat template; contents are strings, or lists
        of {"type": "text", "text": ...}, {"type": "image"} and {"type": "video"}."""
        ...

    def process(self, text: str, pictures: list[Picture], clips: list[Clip]) -> Processed:
        """Token ids of a rendered conversation, with what stands for its media."""
        ...
