"""The picture of the documentation: ``RXLOOP_SCREENSHOT=1 uv run pytest tests/browser/test_screenshot.py`` draws it."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from tests.browser.conftest import ROOT
from tests.browser.server import AT_EASE
from tests.browser.test_page import ask, ended

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_the_page_is_drawn(page: Page) -> None:
    ask(page, AT_EASE)
    turn = ended(page)
    page.evaluate("() => document.activeElement.blur()")
    picture = page.screenshot(animations="disabled")
    assert struct.unpack(">II", picture[16:24]) == (1200, 800)
    box = turn.locator(".facts").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 800, "the timeline must be in the picture"
    if os.environ.get("RXLOOP_SCREENSHOT"):
        (ROOT / "docs" / "serve.png").write_bytes(picture)
