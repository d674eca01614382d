"""Much text and many events do not stop the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.test_page import ask, ended

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONGEST_TASK = 400
"""Milliseconds without an ear for anybody: far above what it takes, far below what drawing everything anew takes."""

WATCH = """() => {
    window.longest = 0;
    window.watch = new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
    });
    window.watch.observe({ type: "longtask" });
}"""


BUSY = """() => new Promise((tell) => setTimeout(() => {
    const until = performance.now() + 500;
    while (performance.now() < until);
    setTimeout(() => tell(window.longest), 100);
}))"""


def longest(page: Page) -> float:
    seen: float = page.evaluate("() => window.longest")
    # a watch that does not see what takes long would be none
    assert page.evaluate(BUSY) >= LONGEST_TASK
    return seen


def test_a_hundred_thousand_characters(page: Page) -> None:
    page.evaluate(WATCH)
    ask(page, "Give me 100,000 characters.")
    turn = ended(page)
    # `textContent` has no line breaks, and neither do the marks that were made of the text
    assert len(turn.locator(".prose").text_content() or "") > 85_000
    assert longest(page) < LONGEST_TASK
    # played again at once, the page stays awake too
    page.reload()
    page.evaluate(WATCH)
    ended(page)
    assert longest(page) < LONGEST_TASK


def test_one_line_of_a_hundred_thousand_characters(page: Page) -> None:
    page.evaluate(WATCH)
    ask(page, "line 20000")
    turn = ended(page)
    assert len(turn.locator(".prose").text_content() or "") == 100_000
    # one paragraph would be laid out as a whole with every frame
    assert turn.locator(".prose p").count() >= 20
    assert longest(page) < LONGEST_TASK


def test_two_thousand_reports_of_a_tool(page: Page) -> None:
    page.evaluate(WATCH)
    ask(page, "chatter 2000")
    turn = ended(page)
    assert turn.locator(".counted").inner_text() == "2,000 of 2,000"
    assert turn.locator("progress").get_attribute("value") == "1"
    assert page.locator("*").count() < 400, "what is over must not stay in the page"
    assert longest(page) < LONGEST_TASK


def test_the_reader_is_not_moved(page: Page) -> None:
    scroller = page.locator("#scroller")
    ask(page, "line 40000")
    page.locator(".prose p").nth(9).wait_for()
    # the newest is kept in sight, until somebody scrolls up
    assert scroller.evaluate("(box) => box.scrollHeight - box.scrollTop - box.clientHeight") < 80
    page.mouse.move(300, 400)
    page.mouse.wheel(0, -600)
    page.locator(".prose p").nth(20).wait_for(state="attached")
    place = scroller.evaluate("(box) => box.scrollTop")
    page.locator(".prose p").nth(30).wait_for(state="attached")
    assert scroller.evaluate("(box) => box.scrollTop") == place
    # what is sent next is in sight again
    page.keyboard.press("Escape")
    ended(page, state="stopped")
    ask(page, "say Here.")
    ended(page, 2)
    assert scroller.evaluate("(box) => box.scrollHeight - box.scrollTop - box.clientHeight") < 80
