from __future__ import annotations

from batchrun.engine.stats import EngineStats
from batchrun.report.history import MOST_POINTS, History


def test_a_single_moment_is_no_history() -> None:
    history = History()
    history.add(1.0, EngineStats())

    assert history.to_dict() is None


def test_a_million_turns_take_a_bounded_number_of_points_and_lose_no_token() -> None:
    history, stats = History(), EngineStats()
    history.add(0.0, stats)
    for turn in range(1, 1_000_001, 5):
        stats.decode_tokens += 3
        history.sample(turn * 0.1, stats)
    history.add(100_000.1, stats)
    made = history.to_dict()

    assert made is not None
    assert MOST_POINTS // 2 <= len(made["seconds"]) <= MOST_POINTS
    assert made["seconds"] == sorted(made["seconds"])
    assert (made["decode_tokens"][0], made["decode_tokens"][-1]) == (0, stats.decode_tokens)


def test_turns_close_together_are_one_point() -> None:
    history, stats = History(), EngineStats()
    history.add(0.0, stats)
    for turn in range(50):
        history.sample(turn * 0.001, stats)

    assert len(history.to_dict()["seconds"]) == 2  # type: ignore[index]
