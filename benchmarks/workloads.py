"""The request files that are measured: what people really send, in numbers for a small machine.

    python benchmarks/workloads.py mixed 200 > mixed.jsonl

mixed  lengths from 5 to about 600 tokens, answers of 1 to 48 tokens
chat   distinct questions, answers of 64 tokens: the model's own end is ignored
label  one instruction of about 400 tokens for all rows, 28 tokens of their own, answers of 4
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

Line = dict[str, Any]

WORDS = [
    *("river", "stone", "amber", "quiet", "early", "north", "paper"),
    *("green", "seven", "light", "copper", "field", "narrow", "open"),
]


def mixed(count: int) -> Iterator[Line]:
    rng = random.Random(11)
    for number in range(count):
        length = rng.choice([2, 8, 20, 60, 200, 500])
        words = " ".join(rng.choice(WORDS) for _ in range(length))
        answer = rng.choice([1, 2, 8, 24, 48])
        yield _line(f"mixed-{number}", f"{number}. {words}. Continue.", answer)


def chat(count: int) -> Iterator[Line]:
    things = ["a lighthouse", "salt", "a clock", "thunder", "a seed", "glass", "a map", "snow"]
    for number in range(count):
        first, second = things[number % 8], things[(number * 3 + 1) % 8]
        question = (
            f"Question {number}. In simple words, for somebody who is {6 + number % 7} years old: "
            f"what do {first} and {second} have in common?"
        )
        yield _line(f"chat-{number}", question, 64) | {"ignore_eos": True}


def label(count: int) -> Iterator[Line]:
    examples = " ".join(
        f"Case {n}: parcel {n} came on time and everything in it was fine. Label: positive."
        for n in range(19)
    )
    system = f"You sort customer messages. Reply with one word, positive or negative. {examples}"
    for number in range(count):
        message = f"Message {number}: it stopped working after {number} days and nobody answers me."
        yield _line(f"label-{number}", message, 4, system)


def _line(custom_id: str, user: str, max_tokens: int, system: str | None = None) -> Line:
    messages = [{"role": "user", "content": user}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return {
        "custom_id": custom_id,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
    }


WORKLOADS = {"mixed": mixed, "chat": chat, "label": label}

if __name__ == "__main__":
    name, count = sys.argv[1], int(sys.argv[2])
    for line in WORKLOADS[name](count):
        print(json.dumps(line))
