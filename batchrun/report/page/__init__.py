"""The report as a page: one HTML file that needs nothing from elsewhere.

It is made from the report file's content alone, so that it can be made again at any time. Loaded
late: matplotlib takes its time.
"""

from __future__ import annotations

from pathlib import Path

from batchrun.report.page.render import render_comparison, render_page
from batchrun.sink.atomic import replacing

__all__ = ["render_comparison", "render_page", "write_page"]


def write_page(page: str, path: Path) -> None:
    """Writes a page whole or not at all; raises RunError where it cannot be written."""
    with replacing(path) as file:
        file.write(page.encode("utf-8", "replace"))
