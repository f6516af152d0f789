"""What a chat template writes where a message has an image or a video."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Markers:
    """`text` is what the template writes for one; empty where it has no place for any. `tokens`
    are the tokenizer's own words in it."""

    noun: str
    text: str
    tokens: frozenset[str]

    @classmethod
    def found(cls, noun: str, one: str, two: str, vocabulary: list[str]) -> Markers:
        """From conversations that differ in having one and two of them at the same place."""
        start = 0
        while start < len(one) and one[start] == two[start]:
            start += 1
        text = two[start : start + len(two) - len(one)]
        is_repeated = two == one[:start] + text + one[start:] and one[:start].endswith(text)
        if not is_repeated:  # a template that numbers them
            text = ""
        return cls(noun, text, frozenset(token for token in vocabulary if token in text))

    def check(self, text: str, count: int, *, also: Markers) -> None:
        """Raise ValueError unless `text` has a place for each of `count` of them, and no more.
        Tokens in `also` are not told apart."""
        if not self.text:
            if not count:
                return
            raise ValueError(f"the model's chat template has no place for a {self.noun}")
        for token in (self.tokens - also.tokens) or self.tokens or {self.text}:
            places = text.count(token)
            if places != count * self.text.count(token):
                raise ValueError(
                    f"{token!r} stands for {count} {self.noun}(s), but is in the prompt {places}"
                    " times; texts must not have such words of the model's own"
                )
