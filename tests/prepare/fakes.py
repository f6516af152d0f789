"""A processor that puts one token for each 10 x 10 pixels in the place of each image."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchrun.models.parts import Part, Processed
from batchrun.models.processor import Clip, Picture
from tests.prepare.conftest import CHATML, tokenizer

IMAGE, VIDEO = "\x01", "\x02"
LISTS = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{{ {'image': '\x01', 'video': '\x02'}.get(part.type) or part.text }}"
    "{% endfor %}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class FakeProcessor:
    """`forgets` leaves the last part out, as a faulty processor would; `fails` raises."""

    def __init__(
        self,
        *,
        template: str = LISTS,
        identity: str = "fake",
        takes_video: bool = True,
        forgets: bool = False,
        fails: str | None = None,
    ) -> None:
        self.identity = identity
        self.takes_video = takes_video
        self._template = tokenizer(template)
        self._forgets = forgets
        self._fails = fails
        self.num_processed = 0

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        return str(self._template.apply_chat_template(messages, tokenize=False, **options))

    def process(self, text: str, pictures: list[Picture], clips: list[Clip]) -> Processed:
        if self._fails is not None:
            raise ValueError(self._fails)
        self.num_processed += 1
        waiting = {
            IMAGE: [(number, _pixels(picture)) for number, picture in enumerate(pictures)],
            VIDEO: [(len(pictures) + n, clip.frames) for n, clip in enumerate(clips)],
        }
        token_ids: list[int] = []
        parts: list[Part] = []
        for char in text:
            if char not in waiting:
                token_ids += tokenizer(CHATML).encode(char)
                continue
            source, pixels = waiting[char].pop(0)
            start = len(token_ids)
            token_ids += [7] * max(pixels.size // 300, 1)
            parts.append(Part(start, len(token_ids), (source,), {"pixel_values": pixels}))
        return Processed(token_ids, parts[:-1] if self._forgets else parts)


def _pixels(picture: Picture) -> Any:
    return np.asarray(picture.image)
