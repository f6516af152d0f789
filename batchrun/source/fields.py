"""The fields of a request's body: which names there are, and errors that name them.

A field that is known but has no effect here is refused unless its value asks for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from batchrun.errors import RowError

# Fields of the request itself; those of sampling are in sampling.py, those of shape in shapes.py.
REQUEST_FIELDS = frozenset(
    {
        *("messages", "prompt", "chat_template_kwargs"),
        *("tools", "tool_choice", "parallel_tool_calls"),
    }
)

# Fields that change nothing in the answer, whatever their value; the model is the run's.
HARMLESS_FIELDS = frozenset(
    {
        "model",
        "user",
        "metadata",
        "store",
        "service_tier",
        "stream_options",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "cache_salt",
        "request_id",
        "priority",
        "guided_decoding_backend",
    }
)

# Fields not honoured, with the values that ask for nothing.
UNSUPPORTED_FIELDS: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "container": (),
    "context_management": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "extra_body": ({},),
    "function_call": (),
    "functions": ([],),
    "images": ([],),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mcp_servers": ([],),
    "min_tokens": (0,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "thinking": ({"type": "disabled"},),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "videos": ([],),
    "web_search_options": (),
}

_REMEDIES = {
    "extra_body": "write its fields directly into the body",
    "reasoning_effort": "give it in chat_template_kwargs if the model's template reads it",
    "function_call": "use tools and tool_choice",
    "functions": "use tools",
    "images": "put image_url parts into the messages, or name the column with --image",
    "videos": "put video_url parts into the messages, or name the column with --video",
}


@dataclass(frozen=True, slots=True)
class Body:
    """The fields of one request, without nulls, and what the row calls them.

    `prefix` and `aliases` (our name -> the row's) turn a field into its dotted path. `system` is
    the content of a system message that the row gives apart from its messages.
    """

    fields: dict[str, Any]
    prefix: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    system: Any = None

    def error(self, name: str, problem: str, *, code: str = "invalid_request") -> RowError:
        """An error about one field; `name` may go on into its value, as in `messages[0].role`."""
        path = self.prefix + dict(self.aliases).get(name, name)
        return RowError(code, f"{path} {problem}", param=path)


def check_fields(body: Body, known: frozenset[str]) -> None:
    """Raises RowError for a field that cannot be honoured, or whose name is not `known`."""
    if body.fields.get("stream", False) is not False:
        raise body.error(
            "stream", "must be false: answers go to a file", code="streaming_unsupported"
        )
    for name, value in body.fields.items():
        if name not in known:
            raise body.error(
                name, f"is not a known field; {_nearest(name, known)}", code="unknown_field"
            )
        if name in UNSUPPORTED_FIELDS and value not in UNSUPPORTED_FIELDS[name]:
            remedy = _REMEDIES.get(name, "remove it")
            raise body.error(name, f"is not supported; {remedy}", code="unsupported_parameter")


def _nearest(name: str, known: frozenset[str]) -> str:
    nearest = get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return f"did you mean {nearest[0]}?" if nearest else "remove it"


def without_nulls(value: Any) -> Any:
    """A copy without the keys of objects that hold null, at every depth.

    Tables fill the keys that a struct lacks with null, and so does what was exported from them.
    Nulls in lists stay: there they have a place. Arrow's maps, lists of pairs, become objects.
    """
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            return without_nulls(dict(value))
        return [without_nulls(item) for item in value]
    return value


def shown(value: Any) -> str:
    """A value as an error message may show it: short."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
