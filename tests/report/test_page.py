"""The report's page: whole, inert, and readable in a real browser."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from batchrun.report.page import render_comparison, render_page
from batchrun.report.recorder import Recorder
from tests.report.reports import recorder, report

EVIL = """"><img src=x onerror=alert(1)><script>alert(1)</script></style>{{ 7*7 }}$\\x$'&\x00"""
CHARTS = [
    "Tokens per second",
    "Rows running",
    "Time to an answer",
    "Length of prompts",
    "Length of answers",
    "Time by phase",
    "Where prompt tokens came from",
    "How answers ended",
]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

# What a page measures of another: the iframe is as wide as a phone.
PROBE = """<iframe id=f style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe>
<script>
f.onload = () => {{
  const root = f.contentDocument.documentElement;
  const charts = f.contentDocument.querySelectorAll("svg").length;
  document.title = [root.scrollWidth - root.clientWidth, charts].join(" ");
}};
</script>"""


class Tags(HTMLParser):
    """Every tag and attribute of a page, and its text."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, set[str]] = {}
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_every_chart_and_figure() -> None:
    page = render_page(report(errors={"invalid_url": "no such endpoint"}))
    text = Tags(page).text

    assert re.findall(r'<figure aria-label="(.*?)"', page) == CHARTS
    assert page.count("<svg ") == len(CHARTS)
    for shown in ("34", "of 35", "no such endpoint", "in.jsonl:1", "an answer", "question "):
        assert shown in text, shown


def test_nothing_comes_from_elsewhere_and_nothing_runs() -> None:
    page = Tags(render_page(report()))
    links = {
        value
        for name in ("src", "href", "xlink:href", "action", "data")
        for value in page.attributes.get(name, set())
    }

    assert {link for link in links if not link.startswith("#")} == set()
    assert not set(page.tags) & {"script", "link", "iframe", "object", "img"}
    assert not re.search(r"url\((?!#)", render_page(report()))


def test_what_rows_hold_is_text_wherever_it_comes() -> None:
    evil = recorder(3, text=EVIL)
    content = report(
        recorded=evil, errors={EVIL: EVIL}, output=f"{EVIL}.parquet", model=EVIL, notes=[EVIL]
    )
    content["finish_reasons"] = {EVIL: 1}
    page = render_page(content)
    others = report(recorded=recorder(3), errors={"a": "b"}, notes=["c"])
    others["finish_reasons"] = {"stop": 1}
    plain = Tags(render_page(others))
    found = Tags(page)

    assert sorted(found.tags) == sorted(plain.tags)
    assert found.attributes.keys() == plain.attributes.keys()
    assert "onerror=alert(1)" in found.text
    assert "{{ 7*7 }}" in found.text


def test_images_are_in_the_page_itself() -> None:
    page = Tags(render_page(report(recorded=recorder(1, thumbnails=[b"one", b"two"]))))

    assert page.tags.count("img") == 2
    assert page.attributes["src"] == {
        f"data:image/jpeg;base64,{base64.b64encode(each).decode()}" for each in (b"one", b"two")
    }


def test_a_report_from_before_there_were_images_and_wrong_answers_has_a_page() -> None:
    content = report(recorded=recorder(1))
    del content["figures"]["wrong"], content["figures"]["samples"][0]["images"]

    assert "Some of the answers" in render_page(content)


def test_images_of_a_report_that_somebody_made_up_are_no_code() -> None:
    content = report(recorded=recorder(1, thumbnails=[b"one"]))
    content["figures"]["samples"][0]["images"] = [EVIL]
    found = Tags(render_page(content))

    assert found.tags.count("img") == 1
    assert "script" not in found.tags
    assert "onerror" not in found.attributes


def test_compared_runs_are_text_too() -> None:
    others = [report(output=f"{EVIL}.parquet", model=EVIL), report(output="a<b>.jsonl")]
    found = Tags(render_comparison(others))

    assert not {"script", "img", "b>"} & set(found.tags[1:])
    assert "<script>" in found.text


def test_a_run_that_computed_nothing_has_a_page() -> None:
    page = render_page(report(recorded=Recorder()))

    assert "Some of the answers" not in page
    assert "Some of the wrong answers" not in page
    assert "Tokens per second" not in page


def test_marks_of_different_charts_do_not_mix() -> None:
    ids = re.findall(r'id="([^"]+)"', render_page(report()))

    assert len(ids) == len(set(ids))


def test_a_page_of_a_long_run_is_small() -> None:
    long = recorder(10_000, text="x" * 5_000, thumbnails=[b"j" * 5_000] * 9)
    assert len(render_page(report(recorded=long)).encode()) < 700_000


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser_nothing_sticks_out_and_every_chart_shows(tmp_path: Path, width: int) -> None:
    name = "a-very-long-name-without-any-place-to-break-" * 3
    page = render_page(
        report(
            recorded=recorder(text="w" * 400, thumbnails=[b"no image"] * 9),
            errors={"invalid_url": "https://example.org/" + "x" * 300},
            output=f"{name}.parquet",
            model=name,
        )
    )
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=escape(page)), encoding="utf-8")
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", probe.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    (title,) = re.findall("<title>(.*?)</title>", done.stdout)
    assert title == f"0 {len(CHARTS)}"
