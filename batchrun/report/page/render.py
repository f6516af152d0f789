"""A report as HTML: what goes where on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from batchrun.report import words
from batchrun.report.compare import comparison, differences
from batchrun.report.page import charts
from batchrun.report.page.charts import Chart

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Card:
    """One of the figures on top."""

    label: str
    figure: str
    note: str = ""


def render_page(report: Report) -> str:
    """The page of one run, from the content of its report file."""
    return (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            name=PurePath(report["output"]).name,
            verdict=words.VERDICTS[report["status"]],
            cards=_cards(report),
            charts=_charts(report),
            wrong=report["figures"].get("wrong"),
            samples=report["figures"]["samples"],
            details=_details(report),
        )
    )


def render_comparison(reports: Sequence[Report]) -> str:
    """A page with several runs side by side."""
    names = [PurePath(report["output"]).name for report in reports]
    return (
        _environment()
        .get_template("compare.html")
        .render(
            names=names,
            lines=comparison(reports),
            differences=differences(reports),
            charts=_rates(names, reports),
        )
    )


def _rates(names: Sequence[str], reports: Sequence[Report]) -> list[Chart]:
    labels = [f"{number} {name}" for number, name in enumerate(names, start=1)]
    found = []
    for key, title in _RATES:
        values = [report[key] for report in reports]
        if any(values):
            rates = dict(zip(labels, (value or 0 for value in values), strict=True))
            found.append(charts.bars(key, title, rates, with_share=False))
    return found


_RATES = (
    ("requests_per_second", "Rows per second"),
    ("generation_tps", "Tokens generated per second of decode"),
    ("prompt_tps", "Prompt tokens per second of prefill"),
    ("elapsed_time", "Seconds"),
)


def _drawing(chart: Chart) -> Markup:
    """The drawing is matplotlib's, which escapes what it writes."""
    head = Markup("<figcaption><b>{}</b><span>{}</span></figcaption>").format(
        chart.title, chart.note
    )
    figure = Markup('<figure aria-label="{}">{}\n{}</figure>')
    return figure.format(chart.title, head, Markup(chart.svg))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("batchrun.report.page"),
        autoescape=True,  # rows, answers and file names may hold anything
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": words.count,
        "drawing": _drawing,
        "figure": words.figure,
        "moment": words.moment,
        "percent": words.percent,
    }
    return environment


def _cards(report: Report) -> list[Card]:
    counts, tokens = report["request_counts"], report["tokens"]
    of_total = f"of {words.count(counts['total'])}" if counts["total"] is not None else ""
    cards = [Card("rows answered", words.count(counts["completed"]), of_total)]
    if counts["reused"]:
        note = "as a run before or another row answered"
        cards.append(Card("reused", words.count(counts["reused"]), note))
    cards.append(Card("rows failed", words.count(counts["failed"])))
    if counts["not_run"]:
        cards.append(Card("rows not run", words.count(counts["not_run"])))
    if report["truncated"]:
        cards.append(Card("cut off", words.count(report["truncated"]), "at max_tokens"))
    cards += _accuracy(report["evaluation"])
    cached = words.share(tokens["cached"], tokens["prompt"])
    return [
        *cards,
        Card("time", words.duration(report["elapsed_time"])),
        Card("rows per second", words.figure(report["requests_per_second"])),
        Card("generated", words.figure(report["generation_tps"]), "tokens a second of decode"),
        Card("prefill", words.figure(report["prompt_tps"]), "tokens a second of prefill"),
        Card("prompt tokens", words.count(tokens["prompt"]), f"{cached} not computed"),
        Card("answer tokens", words.count(tokens["completion"])),
        Card("peak memory", words.figure(report["peak_process_memory"], "GB"), "the process"),
    ]


def _accuracy(evaluation: dict[str, Any] | None) -> list[Card]:
    if evaluation is None:
        return []
    of = f"of {words.count(evaluation['scored'])} ({evaluation['metric']})"
    if evaluation["accuracy"] is None:
        return [Card("correct", words.NOTHING, of)]
    figure, _, bounds = words.accuracy(evaluation).partition(" (")
    return [Card("correct", figure, f"{of}; 95 % interval {bounds.rstrip(')')}")]


def _charts(report: Report) -> list[Chart]:
    """Those for which there are figures."""
    figures = report["figures"]
    found = []
    if figures["history"]:
        found.append(charts.tokens_over_time(figures["history"]))
        found.append(charts.rows_running(figures["history"], report["batch"]["max_num_seqs"]))
    for name, title, unit in _SPREADS:
        if figures[name]:
            found.append(charts.spread(name, title, unit, figures[name]))
    phases = {name: seconds for name, seconds in report["elapsed"].items() if seconds >= 0.005}
    if phases:
        found.append(charts.bars("phases", "Time by phase", phases, " s"))
    return found + _token_charts(report)


_SPREADS = (
    ("latency", "Time to an answer", "seconds from its start to its last token"),
    ("prompt_tokens", "Length of prompts", "tokens"),
    ("completion_tokens", "Length of answers", "tokens"),
)


def _token_charts(report: Report) -> list[Chart]:
    found = []
    sources = {name: report["prompt_tokens"][name] for name in ("computed", "memory", "disk")}
    if any(sources.values()):
        title = "Where prompt tokens came from"
        found.append(charts.bars("sources", title, sources))
    reasons = report["finish_reasons"]
    if reasons:
        found.append(charts.bars("reasons", "How answers ended", reasons))
    return found


def _details(report: Report) -> list[tuple[str, dict[str, str]]]:
    names = ("output", "errors_file", "report", "blas")
    run = {name: report[name] for name in names if report[name]}
    return [
        ("Configuration", words.flat(report["configuration"])),
        ("Device and versions", words.flat({"device": report["device"]} | report["versions"])),
        ("Files", words.flat(run)),
    ]
