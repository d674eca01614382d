from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from rxloop import ConfigurationError
from rxloop.ui.page import page_routes

PAGE = Path(__file__).parents[2] / "rxloop" / "ui" / "page"


async def get(app: Starlette, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "root_path": ""}
    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.asyncio
@pytest.mark.parametrize("file", sorted(path.name for path in PAGE.iterdir()))
async def test_every_file_is_served_with_strict_headers(file: str) -> None:
    app = Starlette(routes=page_routes())
    status, headers, body = await get(app, "/" if file == "index.html" else f"/page/{file}")
    assert (status, body) == (200, (PAGE / file).read_bytes())
    policy = headers["content-security-policy"]
    assert policy == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert headers["content-type"].partition(";")[0] == kinds[file.rpartition(".")[2]]
    assert (await get(app, "/page/nothing.js"))[0] == 404


@pytest.mark.asyncio
async def test_the_settings_are_what_was_given() -> None:
    offered = [{"title": "A sum", "prompt": "</script>2 + 3"}]
    app = Starlette(routes=page_routes(provider="demo", model="m", suggestions=offered))
    status, headers, body = await get(app, "/page/settings.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == {"provider": "demo", "model": "m", "suggestions": offered}


@pytest.mark.parametrize("item", [{"title": "A sum"}, {"prompt": "2 + 3"}, {"title": 1, "prompt": "2 + 3"}])
def test_a_suggestion_that_lacks_something(item: Any) -> None:
    with pytest.raises(ConfigurationError, match="a suggestion must have a title and a prompt, but got"):
        page_routes(suggestions=[item])


def test_nothing_in_the_page_needs_what_its_policy_forbids() -> None:
    html = (PAGE / "index.html").read_text("utf-8")
    assert re.search(r"<script(?![^>]*\bsrc=)", html) is None
    assert re.search(r"\s(style|on\w+)=", html) is None
    assert "<style" not in html
    for path in PAGE.glob("*.js"):
        source = path.read_text("utf-8")
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in source, f"{path.name} must not use {forbidden}"
        assert len(source.splitlines()) <= 400
    # relative addresses work under any mount
    assert re.findall(r'(?:src|href)="(?:/|https?:)[^"]*"', html) == []


def test_it_is_read_as_a_resource_of_the_package() -> None:
    names = {item.name for item in files("rxloop.ui").joinpath("page").iterdir()}
    assert names == {path.name for path in PAGE.iterdir()}
    paths = {route.path for route in page_routes()}
    assert paths == {"/", "/page/settings.json", *(f"/page/{name}" for name in names - {"index.html"})}
