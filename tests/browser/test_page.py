"""The page in a real browser, against the real app."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Watched
from tests.browser.server import MARKUP

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

DONE = ".turn[data-state=done]"
RUNNING = ".turn[data-state=running]"


def ask(page: Page, prompt: str) -> None:
    page.get_by_label("Message").fill(prompt)
    page.keyboard.press("Enter")


def ended(page: Page, number: int = 1, state: str = "done") -> Locator:
    """The turn of this number, once it has ended like this."""
    turn = page.locator(".turn").nth(number - 1)
    page.locator(f".turn:nth-of-type({number})[data-state={state}]").wait_for()
    return turn


def open_gate(page: Page, server: str, name: str) -> None:
    assert page.request.post(f"{server}gates/{name}").status == 204


def texts(locator: Locator) -> list[str]:
    return [text.strip() for text in locator.all_text_contents()]


def times(turn: Locator) -> list[str]:
    """All that the turn's timeline and cards tell of time."""
    told = [turn.locator("svg title").text_content() or "", *texts(turn.locator(".worded li"))]
    told += [*texts(turn.locator(".took")), *texts(turn.locator(".reasoning summary"))]
    return [figure for line in told for figure in re.findall(r"\d+(?:\.\d+)?", line)]


def overflow(page: Page) -> list[str]:
    """The elements that are wider than the window, scrolling boxes left out."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter((element) => {
            if (element.closest("pre, .unseen, .hint, svg, .skip")) return false;
            const box = element.getBoundingClientRect();
            return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
        }).map((element) => `${element.tagName}.${element.className}`)"""
    )
    wide = page.evaluate("() => document.documentElement.scrollWidth > innerWidth")
    return [*found, *(["the document"] if wide else [])]


class TestTurn:
    def test_everything_of_a_turn_is_shown(self, page: Page) -> None:
        page.get_by_role("button", name="Tools in parallel").click()
        turn = ended(page)
        assert turn.locator(".said p").inner_text().startswith("In parallel: look up Wellington")
        # reasoning is folded, and opens
        thoughts = turn.locator(".thoughts")
        assert thoughts.is_hidden()
        turn.locator(".reasoning summary").click()
        assert "The question is: In parallel" in thoughts.inner_text()
        # a card for every call
        assert texts(turn.locator(".tool .name")) == ["look_up", "look_up", "calculator", "clock"]
        card = turn.locator(".tool").nth(2)
        assert json.loads(card.locator(".arguments pre").inner_text()) == {"expression": "12 * 7"}
        assert card.locator(".result pre").inner_text() == "84"
        assert re.fullmatch(r"done · \d+ ms", card.locator(".took").inner_text())
        slow = turn.locator(".tool").nth(0)
        assert slow.locator("progress").get_attribute("value") == "1"
        assert slow.locator(".told").inner_text() == "reading: Wellington, page 8"
        assert slow.locator(".counted").inner_text() == "8 of 8"
        # the answer, with what is bold and what is code
        prose = turn.locator(".prose").last
        assert prose.locator("li").count() == 4
        assert prose.locator("strong").nth(2).inner_text() == "84"
        assert prose.locator("code").inner_text() == "12 * 7"
        # usage
        figures = {
            name: turn.locator(f"[data-figure={name}]").inner_text() for name in ("input_tokens", "output_tokens")
        }
        assert all(int(figure.replace(",", "")) > 100 for figure in figures.values())
        assert turn.locator(".working").is_hidden()
        assert page.title().startswith("In parallel")

    def test_the_timeline_has_a_lane_for_everything(self, page: Page) -> None:
        ask(page, "In parallel: look up Oslo, 12 * 7, and be on time.")
        turn = ended(page)
        assert texts(turn.locator(".marbles .label")) == [
            "steps", "reasoning", "text", "look_up", "calculator", "clock", "usage",
        ]  # fmt: skip
        for lane in ("step", "reasoning", "text"):
            assert turn.locator(f".lane.{lane} .marks").get_attribute("d")
        assert turn.locator(".lane.call .span.ran").count() == 3
        assert turn.locator(".lane.call .span.asked").count() == 3
        assert turn.locator(".marbles .end").count() == 1
        # and says the same in words
        assert turn.locator("svg title").text_content().startswith("Timeline. The turn took ")
        turn.get_by_text("In words").click()
        words = turn.locator(".worded").inner_text()
        assert re.search(r"look_up: ran from \d\.\d to \d\.\d seconds", words)
        assert re.search(r"Tokens at the end: \d+", words)

    def test_it_streams(self, page: Page, server: str) -> None:
        ask(page, "gate streams")
        turn = page.locator(RUNNING)
        turn.locator(".tool[data-state=running]").wait_for()
        assert turn.locator(".prose").inner_text().strip() == "The first half."
        assert turn.locator(".working").is_visible()
        assert page.get_by_role("button", name="Send").is_hidden()
        first = turn.locator(".elapsed").inner_text()
        # the timeline moves while nothing comes
        page.locator(".elapsed", has_not_text=first).wait_for()
        # the screen reader is told of whole answers, not of pieces
        announcer = page.locator("#announcer")
        assert announcer.inner_text() == ""
        open_gate(page, server, "streams")
        ended(page)
        assert page.locator(".prose").last.inner_text() == "The second half."
        assert announcer.text_content() == "The second half."
        assert page.get_by_role("log").get_attribute("aria-live") == "off"

    def test_a_retry_is_a_note(self, page: Page) -> None:
        page.get_by_role("button", name="A retry").click()
        page.locator(".note", has_text=re.compile(r"Trying again in \d\.\d s\.")).wait_for()
        assert page.locator(".brief").text_content() == "waiting to retry"
        turn = ended(page)
        note = turn.locator(".note").inner_text()
        assert note.startswith("Attempt 1 failed: too many requests (HTTP 429). Retried after 1.5 s.")
        assert note.endswith("Too many requests, as was asked for.")
        assert "two attempts" in turn.locator(".prose").inner_text()
        assert "retries" in texts(turn.locator(".marbles .label"))

    def test_a_tool_that_fails(self, page: Page) -> None:
        page.get_by_role("button", name="A tool that fails").click()
        card = ended(page).locator(".tool[data-state=failed]").first
        assert "out of order" in card.locator(".error pre").inner_text()
        assert card.locator(".took").inner_text().startswith("failed · ")

    def test_a_provider_error_is_told_in_words(self, page: Page) -> None:
        page.get_by_role("button", name="A provider error").click()
        turn = ended(page, state="failed")
        alert = turn.get_by_role("alert")
        assert alert.locator("strong").inner_text() == "The answer broke off"
        assert alert.locator("p").inner_text() == "The demo broke off, as it was asked to."
        # no figure of usage has come
        assert texts(turn.locator("[data-figure]")) == ["\u2013"] * 4
        assert "This answer will break off in the mid" in turn.locator(".prose").inner_text()
        assert turn.locator(".marbles .end.failed").count() == 1
        # what failed for a while can be asked again
        alert.get_by_role("button", name="Ask again").click()
        ended(page, 2, state="failed")
        assert len(set(texts(page.locator(".said p")))) == 1

    def test_text_that_looks_like_markdown(self, page: Page) -> None:
        said = (
            r"# Head\n\none\ntwo **bold** and `code`\n- first\n- second\n\n```js\nif (a < b) {}\n\n**no**\n```\nend *"
        )
        ask(page, f"say {said}")
        prose = ended(page).locator(".prose")
        assert prose.locator(".heading").inner_text() == "Head"
        assert prose.locator("p").nth(1).inner_text() == "one\ntwo bold and code"
        assert texts(prose.locator("li")) == ["first", "second"]
        assert prose.locator("pre code").text_content() == "if (a < b) {}\n\n**no**\n"
        assert prose.locator("p").last.inner_text() == "end *"


class TestStop:
    def test_the_button_stops(self, page: Page) -> None:
        ask(page, "gate never")
        page.locator(".tool[data-state=running]").wait_for()
        page.get_by_role("button", name="Stop").click()
        turn = ended(page, state="stopped")
        assert turn.locator(".ending").inner_text() == "Stopped."
        assert turn.locator(".tool").get_attribute("data-state") == "stopped"
        assert turn.locator(".took").inner_text() == "stopped"
        assert turn.locator(".span.stopped").count() == 1
        assert turn.locator(".span.failed").count() == 0
        assert texts(turn.locator(".legend li")) == ["arguments", "running", "stopped"]
        page.get_by_role("button", name="Send").wait_for()
        assert page.get_by_label("Message").evaluate("(field) => field === document.activeElement")

    def test_escape_stops(self, page: Page) -> None:
        ask(page, "gate never")
        page.locator(".tool[data-state=running]").wait_for()
        page.keyboard.press("Escape")
        ended(page, state="stopped")


class TestThreads:
    def test_reload_in_the_middle_of_a_turn(self, page: Page, server: str) -> None:
        ask(page, "say Before.")
        ended(page)
        ask(page, "gate reload")
        page.locator(".tool[data-state=running]").wait_for()
        page.reload()
        page.locator(f"{RUNNING} .tool[data-state=running]").wait_for()
        assert texts(page.locator(".said p")) == ["say Before.", "gate reload"]
        assert page.locator(".prose").nth(1).inner_text().strip() == "The first half."
        assert page.get_by_role("button", name="Stop").is_visible()
        open_gate(page, server, "reload")
        ended(page, 2)
        assert page.locator(".prose").last.inner_text() == "The second half."
        # nothing is there twice
        assert page.locator(".turn").count() == 2
        assert page.locator(".tool").count() == 1

    def test_who_comes_later_sees_the_same_times(self, page: Page, watched: Watched, server: str) -> None:
        ask(page, "In parallel: look up Oslo, 12 * 7, and be on time.")
        told = times(ended(page))
        assert any(float(figure) > 0 for figure in told)
        page.reload()
        assert times(ended(page)) == told
        # and of a turn that runs still, what was there before and the clock that goes on
        ask(page, "gate late")
        page.locator(f"{RUNNING} .tool[data-state=running]").wait_for()
        page.locator(f"{RUNNING} .elapsed", has_text=re.compile(r"^(0\.[5-9]|[1-9])")).wait_for()
        other = watched.open(page.url)
        other.locator(f"{RUNNING}:nth-of-type(2) .tool[data-state=running]").wait_for()
        open_gate(page, server, "late")
        first, late = times(ended(page, 2)), times(ended(other, 2))
        assert late == first
        assert ended(other, 2).locator(".elapsed").inner_text() == ended(page, 2).locator(".elapsed").inner_text()

    def test_events_without_times(self, page: Page) -> None:
        def timeless(route: Route) -> None:
            response = route.fetch()
            route.fulfill(response=response, body=re.sub(r',"time":[\d.]+\}\n', "}\n", response.text()))

        page.route("**/events?*", timeless)
        ask(page, "2 + 3")
        turn = ended(page)
        # all came at once
        assert turn.locator(".elapsed").inner_text().endswith(" ms")
        assert "5" in turn.locator(".prose").last.inner_text()

    def test_a_connection_that_breaks_goes_on_where_it_was(self, page: Page, server: str) -> None:
        assert page.request.post(f"{server}cuts/1").status == 204
        ask(page, "gate cut")
        # the stream ended early, and the page says so until it has another
        connection = page.locator("#connection")
        connection.get_by_text("The connection is lost. Trying again…").wait_for()
        page.locator(f"{RUNNING} .tool[data-state=running]").wait_for()
        page.locator("#connection:empty").wait_for(state="attached")
        open_gate(page, server, "cut")
        ended(page)
        assert texts(page.locator(".prose")) == ["The first half.", "The second half."]
        assert page.locator(".thoughts").text_content() == "First I wait."
        assert page.locator(".tool").count() == 1

    def test_a_server_that_is_away_for_a_moment(self, page: Page, watched: Watched, server: str) -> None:
        asked: list[str] = []

        def busy_once(route: Route) -> None:
            asked.append(route.request.url)
            if len(asked) == 2:
                route.fulfill(status=503, body="")
            else:
                route.continue_()

        page.route("**/events?*", busy_once)
        assert page.request.post(f"{server}cuts/1").status == 204
        ask(page, "gate away")
        page.locator(f"{RUNNING} .tool[data-state=running]").wait_for()
        open_gate(page, server, "away")
        ended(page)
        # the browser gives up after an answer that is no stream, the page does not, and it knows where it was
        assert len(asked) == 3
        assert "&after=" in asked[2]
        assert texts(page.locator(".prose")) == ["The first half.", "The second half."]
        assert page.locator(".thoughts").text_content() == "First I wait."
        assert all("503" in complaint for complaint in watched.complaints)
        watched.complaints.clear()

    def test_a_turn_that_is_gone(self, page: Page, watched: Watched, server: str) -> None:
        page.route("**/events?*", lambda route: route.fulfill(status=404, body="{}"))
        ask(page, "say Nothing.")
        turn = ended(page, state="failed")
        alert = turn.get_by_role("alert")
        assert "The server no longer has this turn" in alert.inner_text()
        assert alert.get_by_role("button", name="Ask again").is_visible()
        assert page.locator("#connection").inner_text() == ""
        assert page.get_by_role("button", name="Send").is_visible()
        # later it is no more than an old turn, of which nothing is left
        page.reload()
        turn = ended(page, state="gone")
        assert turn.locator(".said p").inner_text() == "say Nothing."
        assert "The server no longer has this turn." in turn.locator(".ending").inner_text()
        assert page.get_by_role("alert").count() == 0
        assert all("404" in complaint for complaint in watched.complaints)
        watched.complaints.clear()

    def test_a_thread_that_nobody_knows(self, page: Page, watched: Watched, server: str) -> None:
        other = watched.open(f"{server}#thread=nobody")
        notice = other.get_by_role("alert")
        notice.wait_for()
        assert "does not know this conversation" in notice.inner_text()
        ask(other, "say Anew.")
        ended(other)
        assert notice.count() == 0
        assert other.url.endswith("#thread=nobody")
        assert all("404" in complaint for complaint in watched.complaints)
        watched.complaints.clear()

    def test_two_tabs_watch_one_turn(self, page: Page, watched: Watched, server: str) -> None:
        ask(page, "gate tabs")
        page.locator(".tool[data-state=running]").wait_for()
        other = watched.open(page.url)
        other.locator(".tool[data-state=running]").wait_for()
        open_gate(page, server, "tabs")
        for tab in (page, other):
            ended(tab)
            assert tab.locator(".prose").last.inner_text() == "The second half."
        # a turn that begins in one is seen by the other, which may stop it
        ask(other, "gate never")
        page.locator(f"{RUNNING} .tool[data-state=running]").wait_for()
        page.get_by_role("button", name="Stop").click()
        ended(other, 2, state="stopped")
        assert other.locator(".turn").count() == page.locator(".turn").count() == 2

    def test_a_tab_that_shares_nothing_sees_new_turns_too(
        self, page: Page, server: str, new_context: Callable[..., Watched]
    ) -> None:
        ask(page, "say One.")
        ended(page)
        other = new_context().open(page.url)
        ended(other)
        ask(page, "say Two.")
        ended(other, 2)
        assert texts(other.locator(".prose")) == ["One.", "Two."]

    def test_new_chat(self, page: Page) -> None:
        ask(page, "say One.")
        ended(page)
        first = page.url
        page.get_by_role("button", name="New chat").click()
        page.locator("#welcome").wait_for()
        assert page.locator(".turn").count() == 0
        ask(page, "say Two.")
        ended(page)
        assert page.url != first
        page.go_back()
        page.get_by_text("One.", exact=True).wait_for()
        assert page.locator(".turn").count() == 1

    def test_a_thread_that_is_busy_is_told(self, page: Page, watched: Watched) -> None:
        ask(page, "gate never")
        page.locator(".tool[data-state=running]").wait_for()
        url = page.url
        thread = url.partition("#thread=")[2]
        body = {
            "threadId": thread, "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {},
            "messages": [{"id": "m", "role": "user", "content": "say No."}],
        }  # fmt: skip
        answer = page.request.post(url.partition("#")[0] + "turns?format=rxloop", data=body)
        assert answer.status == 409
        page.keyboard.press("Escape")
        ended(page, state="stopped")

    def test_what_the_server_refuses_is_told(self, page: Page, watched: Watched) -> None:
        page.route(
            "**/turns?format=rxloop",
            lambda route: route.fulfill(
                status=429,
                headers={"Retry-After": "7"},
                content_type="application/json",
                body=json.dumps({"error": {"message": "there are too many turns", "code": "too_many"}}),
            ),
        )
        ask(page, "say Never.")
        notice = page.locator("#notice")
        notice.wait_for()
        assert notice.inner_text() == "There are too many turns. Try again in 7 s."
        assert notice.get_attribute("role") == "alert"
        # what was written is not lost
        assert page.get_by_label("Message").input_value() == "say Never."
        assert page.locator(".turn").count() == 0
        assert [line for line in watched.complaints if "429" not in line] == []
        watched.complaints.clear()


class TestInjection:
    def test_nothing_that_is_said_is_markup(self, page: Page, watched: Watched) -> None:
        page.get_by_label("Message").fill(f"inject {MARKUP}")
        page.keyboard.press("Enter")
        turn = ended(page, state="failed")
        turn.locator(".reasoning summary").click()
        turn.get_by_text("In words").click()
        # each place shows it as text
        assert turn.locator(".said p").inner_text() == f"inject {MARKUP}"
        assert turn.locator(".thoughts").inner_text() == MARKUP
        assert turn.locator(".prose").first.inner_text().startswith(MARKUP)
        assert turn.locator(".prose pre").inner_text().strip() == MARKUP
        assert texts(turn.locator(".tool .name")) == [MARKUP, f"failing {MARKUP}", f"unknown {MARKUP}"]
        card = turn.locator(".tool").nth(0)
        assert json.loads(card.locator(".arguments pre").inner_text()) == {MARKUP: MARKUP}
        assert json.loads(card.locator(".result pre").inner_text()) == {MARKUP: MARKUP}
        assert card.locator(".told").inner_text() == MARKUP
        assert MARKUP in turn.locator(".tool").nth(1).locator(".error pre").inner_text()
        assert MARKUP in turn.locator(".failure").inner_text()
        assert MARKUP in page.locator("#model").inner_text()
        assert page.locator("img, article script, article a, iframe, style").count() == 0
        # and so it is when it is played again
        page.reload()
        ended(page, state="failed")
        assert page.locator("img, article script, article a, iframe, style").count() == 0

    def test_the_headers(self, page: Page, server: str) -> None:
        for path, kind in (("", "text/html"), ("page/app.js", "text/javascript"), ("page/style.css", "text/css")):
            headers = page.request.get(server + path).headers
            assert headers["content-type"].startswith(kind)
            policy = headers["content-security-policy"].split("; ")
            assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "base-uri 'none'"} < set(policy)
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"


class TestAccess:
    def test_with_the_keyboard_alone(self, page: Page) -> None:
        def focused() -> str:
            said: str = page.evaluate("() => document.activeElement.id || document.activeElement.textContent.trim()")
            return said

        assert focused() == "prompt"
        page.keyboard.type("say One,")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two.")
        assert page.locator(".turn").count() == 0
        page.keyboard.press("Enter")
        turn = ended(page)
        assert turn.locator(".said p").inner_text() == "say One,\ntwo."
        assert turn.locator(".prose").inner_text() == "One,\ntwo."
        # the focus stays where the next prompt is written
        assert focused() == "prompt"
        page.keyboard.type("In parallel: 1 + 1")
        page.keyboard.press("Enter")
        ended(page, 2)
        # everything else can be reached, and opened
        page.locator(".skip").focus()
        seen = []
        for _ in range(30):
            page.keyboard.press("Tab")
            seen.append(focused())
            if seen[-1].startswith("Reasoned"):
                page.keyboard.press("Enter")
            if seen[-1] == "send":
                break
        assert "new-chat" in seen
        assert seen[-2:] == ["prompt", "send"]
        assert sum(name == "In words" for name in seen) == 2
        assert page.locator(".thoughts").is_visible()

    def test_landmarks_and_names(self, page: Page) -> None:
        ask(page, "In parallel: 1 + 1")
        ended(page)
        for role in ("banner", "main", "contentinfo"):
            assert page.get_by_role(role).count() == 1
        assert page.get_by_role("log", name="Conversation").count() == 1
        assert page.get_by_role("article", name="Turn 1").count() == 1
        assert page.get_by_role("complementary", name="Timeline and usage of turn 1").count() == 1
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, textarea, [tabindex='0'], progress")]
                .filter((element) => !(element.textContent.trim() || element.ariaLabel || element.labels?.length))
                .map((element) => element.outerHTML)"""
        )
        assert nameless == []

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_contrast(self, scheme: str, new_context: Callable[..., Watched], server: str) -> None:
        page = new_context(color_scheme=scheme).open(server)
        page.get_by_role("button", name="A provider error").wait_for()
        for prompt, state in (("provider error", "failed"), ("429", "done"), ("In parallel: 1 + 1", "done")):
            ask(page, prompt)
            ended(page, page.locator(".turn").count(), state)
        poor = page.evaluate(CONTRAST)
        assert poor == []
        ground = page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
        assert (int(re.findall(r"\d+", ground)[0]) < 60) == (scheme == "dark")

    def test_no_motion_where_none_is_wanted(self, new_context: Callable[..., Watched], server: str) -> None:
        page = new_context(reduced_motion="reduce").open(server)
        ask(page, "gate never")
        page.locator(".tool[data-state=running]").wait_for()
        assert page.evaluate("() => document.getAnimations().length") == 0
        page.keyboard.press("Escape")
        ended(page, state="stopped")

    def test_a_narrow_screen_shows_the_answer_rather_than_its_timeline(
        self, page: Page, watched: Watched, server: str
    ) -> None:
        page.set_viewport_size({"width": 360, "height": 640})
        ask(page, "gate narrow")
        turn = page.locator(RUNNING)
        turn.locator(".tool[data-state=running]").wait_for()
        assert turn.locator(".drawing").is_hidden()
        summary = turn.locator(".facts-head")
        assert summary.locator(".brief").inner_text() == "wait_for"
        open_gate(page, server, "narrow")
        ended(page)
        assert re.fullmatch(r"Timeline\s+1 call\s+[\d.]+ m?s\s+\d+ tokens", page.locator(".facts-head").inner_text())
        # the answer's end and the line that sums up are both in sight
        composer = page.locator(".composer").bounding_box()
        assert composer is not None
        for shown in (page.locator(".prose").last, page.locator(".facts-head")):
            box = shown.bounding_box()
            assert box is not None
            assert 60 < box["y"] < box["y"] + box["height"] <= composer["y"]
        page.locator(".facts-head").click()
        page.locator(".drawing").wait_for()
        assert page.locator(".marbles .label").count() == 5
        # a wide one has room for it
        page.locator(".facts-head").click()
        page.set_viewport_size({"width": 1200, "height": 800})
        page.locator(".drawing").wait_for()

    def test_what_a_finger_must_find(self, page: Page) -> None:
        page.set_viewport_size({"width": 360, "height": 640})
        ask(page, "In parallel: 1 + 1")
        ended(page)
        ask(page, "provider error")
        ended(page, 2, state="failed")
        page.locator(".facts-head").last.click()
        small = page.evaluate(
            """() => [...document.querySelectorAll("button, summary, textarea")]
                .filter((element) => element.checkVisibility() && element.getBoundingClientRect().height < 43.9)
                .map((element) => element.outerHTML)"""
        )
        assert small == []
        sizes = page.evaluate(
            """() => [...document.querySelectorAll(".facts *")].filter((element) => element.checkVisibility())
                .map((element) => parseFloat(getComputedStyle(element).fontSize))"""
        )
        assert min(sizes) >= 12

    @pytest.mark.parametrize("width", [360, 900, 1280])
    def test_all_stand_on_one_grid(self, page: Page, width: int) -> None:
        page.set_viewport_size({"width": width, "height": 800})

        def edges(selector: str) -> list[float]:
            box = page.locator(selector).bounding_box()
            assert box is not None
            return [round(box["x"]), round(box["x"] + box["width"])]

        left, right = edges(".field")
        assert edges("#welcome-title")[0] == edges(".brand")[0] == left
        ask(page, "provider error")
        ended(page, state="failed")
        assert edges(".said p")[1] == right
        assert edges(".failure") == [left, right]
        if width < 928:
            assert edges(".facts") == [left, right]
        assert edges("#new-chat")[1] == edges(".facts")[1]

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_a_narrow_screen(self, scheme: str, new_context: Callable[..., Watched], server: str) -> None:
        page = new_context(color_scheme=scheme).open(server)
        page.set_viewport_size({"width": 320, "height": 640})
        assert overflow(page) == []
        long = "w" * 300
        ask(page, f"say {long} **{long}** `{long}`\\n- {long}\\n```\\n{long}\\n```")
        ended(page)
        ask(page, "In parallel: look up Wellington, look up Oslo, 12 * 7, and the time.")
        ended(page, 2)
        ask(page, f"inject {MARKUP}")
        ended(page, 3, state="failed")
        assert overflow(page) == []


CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const luminance = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = rgba(getComputedStyle(at).backgroundColor);
            if (colour[3] > 250) return colour;
        }
        return [255, 255, 255, 255];
    };
    const poor = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!own || !element.checkVisibility() || element.closest(".unseen")) continue;
        const style = getComputedStyle(element);
        const ink = rgba(element.closest("svg") ? style.fill : style.color);
        const [light, dark] = [luminance(ink), luminance(ground(element))].sort((a, b) => b - a);
        const ratio = (light + 0.05) / (dark + 0.05);
        if (ratio < 4.5) poor.push(`${element.tagName}.${element.className?.baseVal ?? element.className} ${ratio}`);
    }
    return poor;
}"""
