from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from batchrun.errors import UsageError
from batchrun.flags import Flags
from batchrun.jobs import Job, read_job
from batchrun.jobs.files import TABLES
from batchrun.jobs.kinds import fault

WHOLE = """
input = ["a.csv", "more/*.csv"]
model = "../models/tiny"
max-time = "5h"
max_num_seqs = "auto"

[prompt]
system = "$5 a word"
prompt = '{{ text }}'

[sampling]
max-tokens = 4
temperature = 0
stop = [".", "%Y"]

[output]
output = "$OUT/%Y.parquet"
keep = "id"
"""


def read(folder: Path, text: str) -> Job:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return read_job(path, datetime(2026, 3, 7), {"OUT": "/out"})


def test_a_job_is_its_flags_with_paths_from_where_it_lies(tmp_path: Path) -> None:
    job = read(tmp_path, WHOLE)

    assert job.inputs == (f"{tmp_path}/a.csv", f"{tmp_path}/more/*.csv")
    assert job.output == "/out/2026.parquet"
    assert job.values == {
        "model": f"{tmp_path.parent}/models/tiny",
        "max_time": "5h",
        "max_num_seqs": "auto",
        "system": "$5 a word",
        "prompt": "{{ text }}",
        "max_tokens": 4,
        "temperature": 0,
        "stop": [".", "%Y"],
        "keep": "id",
    }
    assert Flags.from_names(job.values).max_tokens == 4


def test_a_models_name_is_no_path(tmp_path: Path) -> None:
    assert read(tmp_path, 'model = "org/name-4bit"').values == {"model": "org/name-4bit"}


def test_every_flag_may_stand_above_the_tables(tmp_path: Path) -> None:
    job = read(tmp_path, 'output = "a.jsonl"\nprompt = "{{ x }}"\nmax-tokens = 3\nnice = 5')

    assert job.output == f"{tmp_path}/a.jsonl"
    assert job.values == {"prompt": "{{ x }}", "max_tokens": 3, "nice": 5}


def test_tables_name_flags_that_exist() -> None:
    flags = set(Flags.__dataclass_fields__) | {"output"}

    assert {name for names in TABLES.values() for name in names} <= flags


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-token = 4", "there is no 'max-token'; did you mean 'max-tokens'?"),
        ("[sampling]\nkeep = 'id'", r"there is no 'keep' in \[sampling\]"),
        ("[samplings]\nseed = 1", "there is no 'samplings'; did you mean 'sampling'?"),
        ("seed = 1\n[sampling]\nseed = 2", "'seed' is given twice"),
        ("max-tokens = 4\nmax_tokens = 5", "'max-tokens' is given twice"),
        ("max-tokens = '4'", "'max-tokens' must be a whole number, not '4'"),
        ("max-tokens = true", "'max-tokens' must be a whole number, not True"),
        ("shard = 1", "'shard' must be text, as \"1/4\", not 1"),
        ("temperature = 'hot'", "'temperature' must be a number, not 'hot'"),
        ("fresh = 1", "'fresh' must be true or false, not 1"),
        ("keep = [1]", r"'keep' must be text or a list of texts, not \[1\]"),
        ("max-time = [5]", r"'max-time' must be a number or text, not \[5\]"),
        ("input = 5", "'input' must be a path, not 5"),
        ("output = ['a']", r"'output' must be a path, not \['a'\]"),
        ("input = '$NOWHERE/a'", "'input': the environment has no variable NOWHERE"),
        ("input = ", "is no TOML"),
    ],
)
def test_what_no_run_understands_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{tmp_path}/job.toml: {message}"):
        read(tmp_path, text)


def test_every_flag_has_a_kind_of_value() -> None:
    assert all(fault(name, object()) for name in Flags.__dataclass_fields__)
