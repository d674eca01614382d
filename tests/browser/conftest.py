"""A browser and a server for the module, and a page for every test that must end without a word on its console."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).parents[2]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PATIENCE = 15_000
"""Milliseconds that the browser waits for what must come."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need playwright: pip install playwright"
    )
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("the browser tests need chromium: apt install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(browser: Browser) -> Iterator[str]:
    """The address of a server of its own process: its sockets are not the test's."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.browser.server"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), "the server must tell its address"
        yield address
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


class Watched:
    """The pages of one test, and what they complained of."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.complaints: list[str] = []

    def open(self, address: str) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", self._on_dialog)
        page.goto(address)
        return page

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _on_dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture
def new_context(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Makes a context of a test's own wishes, such as ``color_scheme="dark"``."""
    made: list[Watched] = []

    def new(**options: Any) -> Watched:
        made.append(Watched(browser.new_context(viewport={"width": 1200, "height": 800}, **options)))
        return made[-1]

    yield new
    for watched in made:
        for page in watched.context.pages:
            assert page.evaluate("() => window.injected") is None, "nothing that is said may run"
        watched.context.close()
        assert watched.complaints == []


@pytest.fixture
def watched(new_context: Callable[..., Watched]) -> Watched:
    return new_context()


@pytest.fixture
def page(watched: Watched, server: str) -> Page:
    return watched.open(server)
