"""The key of a prompt: the identity of its answer, wherever and whenever it is computed."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

from batchrun.records import Prompt, Request, Sampling

_FORMAT = b"batchrun 1"
_FORMAT_WITH_MEDIA = b"batchrun 1 media"
_DIGITS = 40
_UNUSED_WHEN_GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None}


def key(
    model: str,
    token_ids: Sequence[int],
    sampling: Sampling,
    run_seed: int | None,
    wants: Iterable[str] = (),
    media: Sequence[bytes] = (),
) -> str:
    """Hex digest of everything that decides one choice of an answer.

    That is the model's identity, the token ids, what else the request `wants`, the digests of
    images and videos in order, and every sampling field that has a say: not `n`, nor what a greedy
    row never reads. A row that draws without a seed of its own takes `run_seed`.
    """
    digest = sha256(_FORMAT_WITH_MEDIA if media else _FORMAT)
    parts = [model.encode(), _sampling_bytes(sampling, run_seed)]
    parts += [want.encode() for want in wants]
    if media:
        parts.append(b"".join(media))
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    digest.update(array("i", token_ids).tobytes())
    return digest.hexdigest()[:_DIGITS]


def wants(request: Request) -> Iterator[str]:
    """What a request asks for beside an answer to its prompt, in words that tell it apart."""
    if request.shape is not None:
        yield f"{request.shape.kind} {request.shape.source}"
    if request.label is not None:
        yield f"label {request.label}"
    if request.prompt_logprobs is not None:
        yield f"prompt_logprobs {request.prompt_logprobs}"
    if request.echo:
        yield "echo"
    if request.tools and request.tool_choice != "auto":
        yield f"tool_choice {request.tool_choice}"
    if request.tools and not request.parallel_tool_calls:
        yield "one tool call"


def with_occurrence(prompt: Prompt, occurrence: int) -> Prompt:
    """The prompt as the `occurrence`-th (from 0) of its key in a run.

    Rows that ask for random draws and name no seed want a draw each, so from the second on they
    get a key of their own. Greedy and seeded rows have one answer and keep their key.
    """
    if occurrence == 0 or prompt.sampling.has_one_answer:
        return prompt
    digest = sha256(f"{prompt.key} {occurrence}".encode())
    return replace(prompt, key=digest.hexdigest()[:_DIGITS])


# The rows of a file mostly share their sampling.
@lru_cache(maxsize=1024)
def _sampling_bytes(sampling: Sampling, run_seed: int | None) -> bytes:
    values = asdict(sampling)
    del values["n"]
    if sampling.seed is None:
        values["seed"] = run_seed
    if sampling.is_greedy:
        values |= _UNUSED_WHEN_GREEDY
    if not sampling.logprobs:
        values["top_logprobs"] = 0
    values["logit_bias"] = sorted(sampling.logit_bias)
    return json.dumps(_canonical(values), sort_keys=True, separators=(",", ":")).encode()


def _canonical(value: Any) -> Any:
    """`value` with equal numbers written alike: 1, 1.0 and true; 0.0 and -0.0."""
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, (bool, float)):
        return int(value) if float(value).is_integer() else value
    return value
