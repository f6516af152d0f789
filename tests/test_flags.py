from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchrun import values
from batchrun.config import ClusterConfig, MediaConfig, ModelConfig, RunConfig, SourceConfig
from batchrun.errors import UsageError
from batchrun.flags import Flags
from batchrun.records import Sampling, Shape
from batchrun.source import read_requests


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "hello"}\n')
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def test_flags_left_out_are_the_defaults_of_the_configuration(rows: Path, output: Path) -> None:
    assert Flags().run_config([rows], output) == RunConfig(
        source=SourceConfig(inputs=(str(rows),)), output=output
    )


def test_every_flag_reaches_the_configuration(rows: Path, output: Path) -> None:
    flags = Flags(
        model="m",
        adapter="a",
        dtype="float16",
        chat_template="t",
        max_model_len=100,
        trust_remote_code=True,
        text_only=True,
        system="s",
        prompt="p",
        image=("i", "j"),
        video="v",
        media_root=str(rows.parent),
        allow_private_hosts=True,
        video_fps=1,
        limit=5,
        shard="2/3",
        keep=("x", "y"),
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        stop=("\n", "###"),
        seed=3,
        choices="a, b",
        label=True,
        model_map=("x=a/b=c", "y=z"),
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_bits="4",
        window=100,
        prefix_cache_dir="prefixes",
        prefix_cache_size="500MB",
        format="jsonl",
        fresh=True,
        fail_on_error="0.25",
        max_time="15m",
        grace="5s",
        quiet=True,
    )
    assert flags.run_config([rows], str(output)) == RunConfig(
        source=SourceConfig(
            inputs=(str(rows),),
            system="s",
            prompt="p",
            images=("i", "j"),
            videos=("v",),
            sampling=Sampling(
                max_tokens=7, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, stop=("\n", "###")
            ),
            shape=Shape("choice", '["a", "b"]'),
            label="only",
            keep=("x", "y"),
            limit=5,
            shard=(2, 3),
        ),
        output=output,
        model=ModelConfig(
            model="m",
            adapter="a",
            dtype="float16",
            max_model_len=100,
            trust_remote_code=True,
            chat_template="t",
            text_only=True,
        ),
        media=MediaConfig(root=rows.parent, allow_private_hosts=True, video_fps=1.0),
        format="jsonl",
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_bits=4,
        window=100,
        prefix_cache_dir=Path("prefixes"),
        prefix_cache_bytes=500_000_000,
        seed=3,
        model_map=(("x", "a/b=c"), ("y", "z")),
        fresh=True,
        fail_on_error=0.25,
        max_time=900.0,
        grace=5.0,
        quiet=True,
    )


def test_keep_all_keeps_every_column(rows: Path) -> None:
    assert Flags(keep_all=True, keep=("x",)).source_config([rows]).keep is None


def test_a_glob_becomes_the_files_there_are_once_for_the_whole_run(
    rows: Path, output: Path
) -> None:
    config = Flags().run_config([rows.parent / "*.jsonl"], output)
    (rows.parent / "late.jsonl").write_text("{}")
    assert config.source.inputs == (str(rows),)


def test_one_string_stands_for_a_list_of_one(rows: Path) -> None:
    source = Flags(keep="text", stop="###").source_config([rows])

    assert source.keep == ("text",)
    assert source.sampling.stop == ("###",)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(90, 90), (1.5, 1.5), ("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("0.5 h", 1800)],
)
def test_durations(given: float | str, seconds: float, rows: Path, output: Path) -> None:
    config = Flags(max_time=given, grace=given).run_config([rows], output)

    assert (config.max_time, config.grace) == (seconds, seconds)


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [
        ("10GB", 10**10),
        ("500 mb", 5 * 10**8),
        ("1.5G", 1_500_000_000),
        ("2KiB", 2048),
        ("1t", 10**12),
        ("0", 0),
        (0, 0),
        (12_345, 12_345),
    ],
)
def test_sizes(given: int | str, nbytes: int, rows: Path, output: Path) -> None:
    config = Flags(prefix_cache_size=given).run_config([rows], output)

    assert config.prefix_cache_bytes == nbytes


def test_a_prefix_cache_without_a_name_is_not_the_current_folder() -> None:
    with pytest.raises(UsageError, match="name a folder"):
        values.prefix_cache("")


def test_no_prefix_cache_is_one_of_no_bytes(rows: Path, output: Path) -> None:
    flags = Flags(prefix_cache_size="1GB", no_prefix_cache=True)

    assert flags.run_config([rows], output).prefix_cache_bytes == 0


def test_a_column_of_expected_answers_that_is_not_there_is_named_by_its_flag(
    tmp_path: Path,
) -> None:
    table = tmp_path / "in.csv"
    table.write_text("review,stars\nfine,5\n")
    config = Flags(prompt="{{ review }}", expected="starz").source_config([table])
    with pytest.raises(UsageError, match=r"--expected starz: no such column; the input has"):
        list(read_requests(config))


@pytest.mark.parametrize(("given", "most"), [(4, 4), ("4", 4), ("auto", None), (None, None)])
def test_rows_at_once(given: Any, most: int | None, rows: Path, output: Path) -> None:
    assert Flags(max_num_seqs=given).run_config([rows], output).max_num_seqs == most


@pytest.mark.parametrize(
    ("given", "limit"), [(None, None), (False, None), (True, 1), ("1", 1), (3, 3), ("0.1", 0.1)]
)
def test_fail_on_error(given: Any, limit: float | None, rows: Path, output: Path) -> None:
    assert Flags(fail_on_error=given).run_config([rows], output).fail_on_error == limit


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs must be a whole number of at least 1, not 0"),
        ({"max_num_seqs": "0"}, "--max-num-seqs must be auto or a whole number of at least 1, not"),
        ({"max_num_seqs": "many"}, "--max-num-seqs must be auto or a whole number of at least 1"),
        ({"max_num_seqs": 2.5}, "--max-num-seqs must be a whole number of at least 1, not 2.5"),
        ({"window": 0}, "--window must be a whole number of at least 1, not 0"),
        ({"max_num_batched_tokens": -1}, "--max-num-batched-tokens must be a whole number"),
        ({"max_model_len": 0}, "--max-model-len must be a whole number of at least 1, not 0"),
        ({"limit": 0}, "--limit must be a whole number of at least 1, not 0"),
        ({"limit": "5"}, "--limit must be a whole number of at least 1, not '5'"),
        ({"max_tokens": -1}, "--max-tokens must be a whole number of at least 0, not -1"),
        ({"temperature": -0.1}, "--temperature must be a number of at least 0, not -0.1"),
        ({"temperature": float("nan")}, "--temperature must be a number"),
        ({"top_p": 2.0}, "--top-p must be a number above 0 and at most 1, not 2.0"),
        ({"min_p": 2.0}, "--min-p must be a number from 0 to 1, not 2.0"),
        ({"stop": ""}, "--stop must be a string or a list of strings, none empty"),
        ({"seed": 2**64}, "--seed must be a whole number of 64 bits"),
        ({"seed": 1.5}, "--seed must be a whole number of 64 bits, not 1.5"),
        ({"seed": True}, "--seed must be a whole number of 64 bits, not True"),
        ({"seed": "7"}, "--seed must be a whole number of 64 bits, not '7'"),
        ({"dtype": "int4"}, "--dtype must be one of float32, float16, bfloat16, not 'int4'"),
        ({"kv_bits": 3}, "--kv-bits must be one of 8, 4, not '3'"),
        ({"format": "csv"}, "--format must be one of parquet, jsonl, parts, not 'csv'"),
        ({"max_time": "soon"}, "--max-time must be seconds, or as 90s, 15m or 2h, not 'soon'"),
        ({"max_time": 0}, "--max-time must be more than 0"),
        ({"grace": "-1"}, "--grace must be seconds"),
        ({"prefix_cache_size": "10"}, "--prefix-cache-size must be 0, or a size as 500MB or 10GB"),
        ({"prefix_cache_size": "-1GB"}, "--prefix-cache-size must be 0, or a size"),
        ({"prefix_cache_size": -1}, "--prefix-cache-size must be 0, or a size"),
        ({"media_root": "nowhere"}, "--media-root nowhere: no such folder"),
        ({"video_fps": 0}, "--video-fps must be a number above 0, not 0"),
        ({"video_fps": float("inf")}, "--video-fps must be a number above 0, not inf"),
        ({"video_fps": True}, "--video-fps must be a number above 0, not True"),
        ({"fail_on_error": "1.5"}, "--fail-on-error must be a number of rows, or a share"),
        ({"fail_on_error": "0"}, "--fail-on-error must be"),
        ({"fail_on_error": "few"}, "--fail-on-error must be"),
        ({"fail_on_error": "inf"}, "--fail-on-error must be"),
        ({"shard": "0/2"}, "--shard must be one of so many, as 1/4 to 4/4, not '0/2'"),
        ({"shard": "3/2"}, "--shard must be one of so many"),
        ({"shard": "half"}, "--shard must be one of so many"),
        ({"ray": "rows.jsonl"}, "--ray rows.jsonl: is no address: name a cluster as auto, HOST"),
        ({"ray": "local", "workers": 0}, "--workers must be a whole number of at least 1, not 0"),
        ({"workers": 2}, "--workers needs --ray, which runs them"),
        ({"ray": "auto", "shard": "1/2"}, "--shard and --ray both split the rows"),
        ({"ray": "auto", "model_map": "a=b"}, "--ray runs one model"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_flags_name(
    values: dict[str, Any], message: str, rows: Path, output: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        Flags(**values).run_config([rows], output)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("address", ["local", "auto", "ray://head:10001", "10.0.0.7:6379"])
def test_a_cluster_is_known_by_its_address(address: str, rows: Path, output: Path) -> None:
    config = Flags(ray=address, workers=3).run_config([rows], output)
    assert config.cluster == ClusterConfig(address=address, workers=3)


def test_a_cluster_cannot_read_standard_input(output: Path) -> None:
    with pytest.raises(UsageError, match="--ray cannot read -"):
        Flags(ray="local").run_config(["-"], output)


def test_without_an_output_it_says_how_to_give_one(rows: Path) -> None:
    with pytest.raises(UsageError, match=r"-o answers\.parquet"):
        Flags().run_config([rows], None)


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(TypeError, match="'max_token' is not a flag of a run; did you mean 'max_t"):
        Flags.from_names({"max_token": 5})


def test_an_unknown_name_with_no_like_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^'zzz' is not a flag of a run$"):
        Flags.from_names({"zzz": 5})
