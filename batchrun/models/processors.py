"""Loads a vision model's tokenizer together with its processor."""

from __future__ import annotations

import hashlib
import importlib.metadata
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from batchrun.config import ModelConfig
from batchrun.errors import ModelError
from batchrun.models import tokenizer
from batchrun.models.forms import Message, MessageForms, Render
from batchrun.models.locate import ModelFiles
from batchrun.models.processor import Processor, tokenizer_of
from batchrun.models.tokenizer import LoadedTokenizer

if TYPE_CHECKING:
    from transformers.processing_utils import ProcessorMixin

_SETTINGS = (
    *("config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    "processor_config.json",
)
# What the configs of mlx-vlm call the tokens that stand for an image, or for a video.
_IMAGE_IDS = (
    *("image_token_id", "image_token_index", "img_context_token_id", "image_patch_token_id"),
    "media_placeholder_token_id",
)
_FOR_TOKENIZERS = {"padding", "padding_side", "add_special_tokens"}
_VIDEO_IDS = ("video_token_id", "video_token_index", "video_context_token_id")


def load(files: ModelFiles, config: ModelConfig) -> LoadedTokenizer:
    """Raises UsageError for a chat template that is not there, ModelError for the rest."""
    settings = _model_settings(files)
    upstream = _upstream(files, config)
    # Many vision models keep their chat template with the processor, where mlx-lm does not look.
    words = tokenizer.load(files, config, _chat_template(upstream))
    try:
        processor = _processor(files, upstream, words, settings)
    except Exception as error:  # processors raise anything
        raise _unreadable(files, error) from error
    return replace(words, processor=processor)


def _processor(
    files: ModelFiles, upstream: ProcessorMixin, words: LoadedTokenizer, settings: dict[str, Any]
) -> Processor:
    from mlx_vlm.utils import should_add_special_tokens

    processor = Processor(
        upstream,
        MessageForms(
            _plain_render(words),
            [_mlx_vlm_render(files, upstream, words)],
            list(tokenizer_of(upstream).get_added_vocab()),
        ),
        identity=_identity(files, upstream),
        image_ids=_ids(settings, _IMAGE_IDS),
        video_ids=_ids(settings, _VIDEO_IDS),
        adds_special_tokens=should_add_special_tokens(files.config["model_type"], upstream),
    )
    if not processor.takes_images():
        _shield(upstream)
    return processor


def _chat_template(upstream: ProcessorMixin) -> str | None:
    """The processor's own, or else its tokenizer's, which mlx-vlm looks for in more files than
    mlx-lm does."""
    own: str | None = vars(upstream).get("chat_template")
    return own or tokenizer_of(upstream).chat_template


def _model_settings(files: ModelFiles) -> dict[str, Any]:
    """The model's config with the defaults of its architecture. Loads the architecture's module,
    which teaches transformers its processor."""
    from mlx_vlm.utils import get_model_and_args

    try:
        architecture, _ = get_model_and_args(dict(files.config))
        return {**vars(architecture.ModelConfig.from_dict(dict(files.config))), **files.config}
    except Exception as error:  # architectures raise anything
        raise _unreadable(files, error) from error


def _upstream(files: ModelFiles, config: ModelConfig) -> ProcessorMixin:
    from mlx_vlm.utils import load_image_processor, load_processor

    trust = config.trust_remote_code
    try:
        upstream = load_processor(files.path, add_detokenizer=False, trust_remote_code=trust)
        image_processor = load_image_processor(files.path, trust_remote_code=trust)
    except Exception as error:  # processors raise anything
        raise _unreadable(files, error) from error
    if image_processor is not None:
        upstream.image_processor = image_processor
    return upstream


def _shield(upstream: ProcessorMixin) -> None:
    """Keep from an image processor what is meant for the tokenizer: some of mlx-vlm's processors
    pass it on to both, which transformers 5 refuses."""
    kind = type(upstream.image_processor)

    def call(self: Any, images: Any, *rest: Any, **options: Any) -> Any:
        own = {name: value for name, value in options.items() if name not in _FOR_TOKENIZERS}
        return kind.__call__(self, images, *rest, **own)

    upstream.image_processor.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def _plain_render(words: LoadedTokenizer) -> Render:
    def render(messages: list[Message], options: dict[str, Any]) -> str:
        return str(words.tokenizer.apply_chat_template(messages, tokenize=False, **options))

    return render


def _mlx_vlm_render(files: ModelFiles, upstream: ProcessorMixin, words: LoadedTokenizer) -> Render:
    """mlx-vlm's way, for templates that know no parts: its own words for images in the text."""
    from mlx_vlm.prompt_utils import apply_chat_template

    def render(messages: list[Message], options: dict[str, Any]) -> str:
        count = sum(
            part["type"] == "image"
            for message in messages
            if isinstance(message["content"], list)
            for part in message["content"]
        )
        options = {"chat_template": words.tokenizer.chat_template, **options}
        return str(
            apply_chat_template(upstream, files.config, messages, num_images=count, **options)
        )

    return render


def _ids(settings: dict[str, Any], names: tuple[str, ...]) -> frozenset[int]:
    found = (settings.get(name) for name in names)
    return frozenset(token_id for token_id in found if isinstance(token_id, int))


def _identity(files: ModelFiles, upstream: ProcessorMixin) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in _SETTINGS:
        path = files.path / name
        digest.update(path.read_bytes() if path.exists() else b"")
    versions = (
        f"{name} {importlib.metadata.version(name)}" for name in ("mlx-vlm", "transformers")
    )
    return " ".join([type(upstream).__name__, *versions, digest.hexdigest()])


def _unreadable(files: ModelFiles, error: Exception) -> ModelError:
    reason = shorten(str(error), 200, placeholder=" ...")
    return ModelError(
        f"{files.name}'s image processor cannot be read ({reason}); fetch the model again, or use"
        " --text-only"
    )
