from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from batchrun.config import ModelConfig
from batchrun.errors import ModelError, UsageError
from batchrun.models import ModelFiles, locate
from batchrun.models.locate import PATTERNS
from tests import tiny

ROOT = Path(__file__).parents[2]


def silent(line: str) -> None:
    pass


def find(path: Path | str, **fields: Any) -> ModelFiles:
    return locate(ModelConfig(model=str(path), **fields), silent)


def folder(path: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    tiny.write_json(path / "config.json", config)
    if generation is not None:
        tiny.write_json(path / "generation_config.json", generation)
    return path


def test_local_folder_is_found_under_the_name_given(tiny_model: Callable[..., Path]) -> None:
    path = tiny_model("llama")
    files = find(path)
    assert (files.name, files.path, files.notes) == (str(path), path, ())
    assert files.config["model_type"] == "llama"
    assert files.context_length == 4096


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder(tmp_path, {})
    assert find("~").path == tmp_path


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 2}, None, {2}),
        ({"eos_token_id": 2}, {"eos_token_id": [5, 6]}, {2, 5, 6}),
        ({"text_config": {"eos_token_id": [7]}}, {"eos_token_id": 2}, {2, 7}),
        ({"eos_token_id": None}, {}, set()),
    ],
)
def test_eos_is_the_union_of_all_files(
    config: dict[str, Any], generation: dict[str, Any] | None, expected: set[int], tmp_path: Path
) -> None:
    assert find(folder(tmp_path, config, generation)).eos_token_ids == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"vocab_size": 300}, 300),
        ({"vocab_size": 300, "text_config": {"vocab_size": 320}}, 320),
        ({"text_config": {"vocab_size": 320}}, 320),
        ({"vocab_size": None}, None),
        ({}, None),
    ],
)
def test_vocab_size_is_the_largest_that_the_config_declares(
    tmp_path: Path, config: dict[str, Any], expected: int | None
) -> None:
    assert find(folder(tmp_path, config)).vocab_size == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 100}, 100),
        ({"n_positions": 50}, 50),
        ({"text_config": {"max_position_embeddings": 200}}, 200),
        ({"max_position_embeddings": None}, None),
        ({}, None),
    ],
)
def test_context_length_is_what_the_config_declares(
    config: dict[str, Any], expected: int | None, tmp_path: Path
) -> None:
    assert find(folder(tmp_path, config)).context_length == expected


def test_shorter_context_can_be_asked_for(tmp_path: Path) -> None:
    assert find(folder(tmp_path, {"n_ctx": 100}), max_model_len=64).context_length == 64
    assert find(folder(tmp_path, {}), max_model_len=64).context_length == 64


def test_longer_context_than_the_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--max-model-len 101 is more than the 100 tokens"):
        find(folder(tmp_path, {"n_ctx": 100}), max_model_len=101)


@pytest.mark.parametrize("name", ["./none", "/no/such/folder", "../none", "~/none", "a/b/c", "a b"])
def test_path_that_is_not_there_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match=f"there is no model folder {name}"):
        find(name)


def test_file_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(UsageError, match=r"model\.gguf is a file"):
        find(tmp_path / "model.gguf")


def test_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        find(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_broken_config_is_one_clear_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json"):
        find(tmp_path)


def test_adapter_folder_must_have_its_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no adapter_config\.json"):
        find(folder(tmp_path, {}), adapter=str(tmp_path))


def test_missing_hub_model_offline_is_one_clear_line() -> None:
    said: list[str] = []
    with pytest.raises(ModelError) as caught:
        locate(ModelConfig(model="no-such-org/no-such-model"), said.append)
    assert "no-such-org/no-such-model is neither a folder nor in the Hub cache" in str(caught.value)
    assert "connect once, or give a local folder" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert said == ["Fetching no-such-org/no-such-model from the Hugging Face Hub"]


def test_cached_hub_model_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    blob = repository / "blobs" / "1"
    for path in (snapshot, blob.parent, repository / "refs"):
        path.mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    blob.write_text(json.dumps({"n_ctx": 7}))
    (snapshot / "config.json").symlink_to(blob)
    files = find("org/name")
    assert (files.name, files.path, files.context_length) == ("org/name", snapshot, 7)


@pytest.fixture
def hub() -> Iterator[Callable[[int, str], str]]:
    """A hub on loopback that answers every request with one status and error code."""
    servers = []

    def start(status: int, code: str) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "RepoNotFound", "no such public model on the Hub; check the name"),
        (403, "GatedRepo", "needs its licence accepted on its Hub page"),
        (400, "", "the Hub cannot be reached"),
    ],
)
def test_what_the_hub_refuses_is_one_clear_line(
    status: int, code: str, expected: str, hub: Callable[[int, str], str], tmp_path: Path
) -> None:
    script = (
        "from batchrun.config import ModelConfig; from batchrun.models import locate\n"
        "from batchrun.errors import ModelError\n"
        "try: locate(ModelConfig(model='org/name'), print)\n"
        "except ModelError as error: print(error)"
    )
    environment = {"HF_ENDPOINT": hub(status, code), "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    _, line, end = done.stdout.split("\n")
    assert expected in line
    assert end == ""
    assert done.stderr == ""


@pytest.mark.parametrize(
    "name",
    [
        *("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"),
        *("chat_template.json", "chat_template.jinja", "additional_chat_templates/tool.jinja"),
        *("model-00001-of-00002.safetensors", "spiece.model", "qwen.tiktoken", "merges.txt"),
    ],
)
def test_a_download_has_what_a_vision_model_needs(name: str) -> None:
    assert any(fnmatch(name, pattern) for pattern in PATTERNS)
