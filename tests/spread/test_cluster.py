"""How a cluster's cores and GPUs are shared out."""

from __future__ import annotations

import socket
from typing import Any

import pytest

pytest.importorskip("ray")

from batchrun.config import ClusterConfig
from batchrun.errors import RunError, UsageError
from batchrun.spread import cluster
from batchrun.spread.cluster import Team, connected


@pytest.mark.parametrize(
    ("machines", "workers", "team"),
    [
        ([{"CPU": 2}], 2, Team(2, 1, 0, 2)),
        ([{"CPU": 2}], None, Team(1, 2, 0, 1)),
        ([{"CPU": 8}, {"CPU": 8}], None, Team(2, 8, 0, 1)),
        ([{"CPU": 8}, {"CPU": 8}], 3, Team(3, 4, 0, 2)),
        ([{"CPU": 8}, {"CPU": 2}], 2, Team(2, 4, 0, 2)),
        ([{"CPU": 16, "GPU": 4}, {"CPU": 8}], None, Team(4, 1, 1, 1)),
        ([{"CPU": 16, "GPU": 4}], 2, Team(2, 1, 1, 1)),
        ([{"CPU": 16, "GPU": 1}], 4, Team(4, 4, 0, 4)),
    ],
)
def test_workers_share_what_there_is(
    machines: list[dict[str, float]],
    workers: int | None,
    team: Team,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _has(machines, monkeypatch)
    with connected(ClusterConfig(address="local", workers=workers)) as found:
        assert found == team


def test_too_many_workers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _has([{"CPU": 2}, {}], monkeypatch)
    asked = ClusterConfig(address="local", workers=3)
    with pytest.raises(UsageError, match="--workers 3: the cluster has 2 cores"), connected(asked):
        pass


@pytest.mark.parametrize(
    "address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "[::1]:{}", "127.0.0.1:9{}"]
)
def test_a_cluster_that_does_not_answer_is_named_at_once(address: str) -> None:
    with socket.socket() as taken:  # by one who does not listen
        taken.bind(("127.0.0.1", 0))
        named = address.format(taken.getsockname()[1])
        with (
            pytest.raises(RunError, match=r"ray start --head, or") as caught,
            connected(ClusterConfig(address=named)),
        ):
            pass
    assert str(caught.value).startswith(f"no Ray cluster answers at {named} (")


def _has(machines: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that is there already."""
    nodes: list[dict[str, Any]] = [{"Alive": True, "Resources": each} for each in machines]
    nodes.append({"Alive": False, "Resources": {"CPU": 99}})
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster.ray, "nodes", lambda: nodes)
