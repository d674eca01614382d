"""What people do too early, twice or elsewhere, and servers that answer oddly."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.test_page import ask, ended, texts

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request, Route


def hold_posts(page: Page) -> list[Route]:
    """The POSTs of turns, which wait until the test lets them go on."""
    held: list[Route] = []
    page.route("**/turns?format=rxloop", lambda route: held.append(route))
    return held


def tell(page: Page, events: Sequence[Mapping[str, Any]]) -> None:
    """Let the next turns be these events, all at once."""
    body = "".join(f"id: {number}-0\ndata: {json.dumps(event)}\n\n" for number, event in enumerate(events, 1))
    page.route("**/events?*", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def finished(text: str = "") -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1, "cache_read_tokens": 0, "reasoning_tokens": 0}
    return {"type": "turn_finished", "usage": usage, "text": text, "output": None, "finish_reason": "stop", "time": 1}


def test_the_skip_link_leaves_the_thread(page: Page) -> None:
    ask(page, "say One.")
    ended(page)
    address = page.url
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    page.locator("#prompt:focus").wait_for()
    assert page.url == address
    assert page.locator(".turn").count() == 1


def test_what_is_stopped_before_the_server_has_taken_it(page: Page) -> None:
    held = hold_posts(page)
    with page.expect_request("**/turns?format=rxloop"):
        ask(page, "gate never")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Stopping…").wait_for()
    held[0].continue_()
    ended(page, state="stopped")
    assert page.locator("#notice").is_hidden()
