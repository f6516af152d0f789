"""What a request's body asks about tokens that it gives itself.

`prompt_logprobs` is vLLM's, `echo` the completion endpoint's; `context` and `continuation` make a
row that only wants the latter scored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from batchrun.records import Sampling
from batchrun.source.fields import Body, shown

SCORE_FIELDS = frozenset({"echo", "prompt_logprobs"})
_MAX_LIKELIEST = 20


class Scores(NamedTuple):
    """As in `records.Request`."""

    prompt_logprobs: int | None
    echo: bool


def read_scores(body: Body, sampling: Sampling, *, is_chat: bool) -> Scores:
    """Raises RowError naming the field at fault."""
    echo = body.fields.get("echo", False)
    if not isinstance(echo, bool):
        raise body.error("echo", f"must be true or false, not {shown(echo)}")
    if echo and is_chat:
        raise body.error("echo", "is for completions: give prompt, not messages")
    likeliest = _prompt_logprobs(body)
    if not echo or not sampling.logprobs:
        return Scores(likeliest, echo)
    if likeliest is not None:
        raise body.error("prompt_logprobs", "has no place beside echo with logprobs")
    return Scores(sampling.top_logprobs, echo)


def split_continuation(body: Body) -> tuple[Body, str | None]:
    """The body as a completion after its context, and the continuation to score.

    Raises RowError where one of the two is missing or is no text.
    """
    if "continuation" not in body.fields:
        return body, None
    fields = dict(body.fields)
    for name in ("context", "continuation"):
        if not isinstance(fields.get(name), str):
            raise body.error(name, f"must be a string, not {shown(fields.get(name))}")
    for name in ("messages", "prompt", *SCORE_FIELDS):
        if name in fields:
            raise body.error(name, "has no place beside a continuation")
    continuation = fields.pop("continuation")
    if not continuation:
        raise body.error("continuation", "is empty")
    fields["prompt"] = fields.pop("context")
    aliases = (*body.aliases, ("prompt", "context"))
    return replace(body, fields=fields, aliases=aliases), continuation


def _prompt_logprobs(body: Body) -> int | None:
    value: Any = body.fields.get("prompt_logprobs")
    if value is None or value is False:
        return None
    if type(value) is not int or not 0 <= value <= _MAX_LIKELIEST:
        problem = f"must be a whole number from 0 to {_MAX_LIKELIEST}, not {shown(value)}"
        raise body.error("prompt_logprobs", problem)
    return value
