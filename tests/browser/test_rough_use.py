"""What people do too early, twice or elsewhere, and servers that answer oddly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Watched
from tests.browser.test_page import ask, ended, texts

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


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


def test_a_thread_that_is_left_while_it_is_sent_to_and_come_back_to(page: Page, watched: Watched) -> None:
    held = hold_posts(page)
    with page.expect_request("**/turns?format=rxloop"):
        ask(page, "say One.")
    page.get_by_role("button", name="New chat").click()
    page.go_back()
    # the server has not heard of it yet
    page.get_by_text("does not know this conversation").wait_for()
    held[0].continue_()
    assert ended(page).locator(".prose").inner_text() == "One."
    assert page.locator("#notice").is_hidden()
    assert all("404" in complaint for complaint in watched.complaints)
    watched.complaints.clear()


def test_what_is_refused_after_its_thread_was_left(page: Page, watched: Watched) -> None:
    ask(page, "say One.")
    ended(page)
    address = page.url
    page.get_by_role("button", name="New chat").click()
    held = hold_posts(page)
    with page.expect_request("**/turns?format=rxloop"):
        ask(page, "say Two.")
    page.evaluate("(address) => { location.href = address; }", address)
    ended(page)
    with page.expect_response("**/turns?format=rxloop"):
        held[0].fulfill(status=500, body="")
    # what was written is not lost, and the thread that is shown stays as it is
    page.wait_for_function("() => document.getElementById('prompt').value === 'say Two.'")
    assert page.locator("#welcome").is_hidden()
    assert page.locator("#notice").is_hidden()
    assert page.title() == "say One. · rxloop"
    assert all("500" in complaint for complaint in watched.complaints)
    watched.complaints.clear()


def test_a_refused_beginning_leaves_no_title(page: Page, watched: Watched) -> None:
    page.route("**/turns?format=rxloop", lambda route: route.fulfill(status=500, body="<h1>no</h1>"))
    ask(page, "say Never.")
    page.get_by_text("The server answered with HTTP 500.").wait_for()
    assert page.title() == "rxloop"
    assert page.locator("#welcome").is_visible()
    watched.complaints.clear()


def test_a_thread_that_is_left_while_it_loads_is_not_loaded_on(page: Page) -> None:
    for number in range(1, 6):
        ask(page, f"say {number}")
        ended(page, number)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/events?" in request.url else None)
    page.route("**/events?*", lambda route: None)
    page.reload()
    page.locator(".turn").nth(4).wait_for()
    page.get_by_role("button", name="New chat").click()
    page.locator("#welcome").wait_for()
    # two frames later the streams have been let go
    page.evaluate("() => new Promise((tell) => requestAnimationFrame(() => requestAnimationFrame(() => tell(0))))")
    page.evaluate("() => new Promise((tell) => setTimeout(tell, 100))")
    assert len(asked) == 3


def test_a_list_of_turns_that_is_none(page: Page) -> None:
    ask(page, "say One.")
    ended(page)
    page.route("**/threads/*", lambda route: route.fulfill(content_type="text/html", body="<h1>Log in</h1>"))
    connection = page.locator("#connection")
    connection.get_by_text("The server's answer could not be read. Trying again…").wait_for()
    page.unroute("**/threads/*")
    page.locator("#connection:empty").wait_for(state="attached")


def test_a_long_line_that_comes_at_once_stays_in_paragraphs(page: Page) -> None:
    words = "word " * 100_000
    tell(
        page,
        [
            {"type": "text_delta", "text": "So: ", "time": 0},
            # what is shown is shown before what follows
            {"type": "mystery"},
            {"type": "text_delta", "text": f"{words}**bold**", "time": 0.5},
            finished(),
        ],
    )
    ask(page, "say x")
    prose = ended(page).locator(".prose")
    assert prose.text_content() == f"So: {words}bold"
    assert 100 <= prose.locator("p").count() <= 130
    assert prose.locator("strong").count() == 1


@pytest.mark.parametrize(
    "odd",
    [
        None,
        {"type": "tool_call_started"},
        {"type": "usage_updated"},
        {"type": "error", "error": {"kind": "constructor", "message": "no"}},
    ],
)
def test_an_event_that_the_page_does_not_understand(page: Page, watched: Watched, odd: Any) -> None:
    last = {"type": "text_delta", "text": "Hello.", "time": 0.5}
    ending = [] if odd and odd["type"] == "error" else [last, finished("Hello.")]
    tell(page, [{"type": "turn_started", "provider": "p", "model": "m", "time": 0}, odd, *ending])
    ask(page, "say x")
    # the rest is shown
    turn = ended(page, state="done" if ending else "failed")
    if ending:
        assert turn.locator(".prose").inner_text() == "Hello."
    else:
        assert turn.locator(".failure strong").inner_text() == "The turn failed"
    # and the console tells of it
    watched.complaints.clear()


def test_an_old_turn_whose_server_is_away_is_not_gone(page: Page, watched: Watched) -> None:
    ask(page, "say One.")
    ended(page)
    answers = [503, 502, 429]

    def away(route: Route) -> None:
        if answers:
            route.fulfill(status=answers.pop(), body="")
        else:
            route.continue_()

    page.route("**/events?*", away)
    page.reload()
    page.get_by_text("The connection is lost. Trying again…").wait_for()
    turn = ended(page)
    assert texts(turn.locator(".prose")) == ["One."]
    page.locator("#connection:empty").wait_for(state="attached")
    watched.complaints.clear()


def test_a_running_turn_whose_server_is_away_for_long_is_not_gone(page: Page, watched: Watched) -> None:
    asked: list[str] = []

    def away(route: Route) -> None:
        asked.append(route.request.method)
        if len(asked) <= 5:
            route.fulfill(status=503, body="")
        else:
            route.continue_()

    page.route("**/events?*", away)
    ask(page, "say One.")
    turn = ended(page)
    assert texts(turn.locator(".prose")) == ["One."]
    # only then it was looked why
    assert asked == ["GET", "GET", "GET", "GET", "HEAD", "GET"]
    watched.complaints.clear()


def test_a_key_that_belongs_to_an_input_method(page: Page) -> None:
    page.get_by_label("Message").fill("say x")
    # Safari tells of the end of a composition first
    page.evaluate(
        """() => document.getElementById("prompt").dispatchEvent(
            new KeyboardEvent("keydown", { key: "Enter", keyCode: 229, bubbles: true, cancelable: true })
        )"""
    )
    assert page.locator(".turn").count() == 0
    assert page.get_by_label("Message").input_value() == "say x"
    page.keyboard.press("Enter")
    ended(page)
