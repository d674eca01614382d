"""Which requests are the same, and how a difference is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rxloop.testing.matching import ComparedRequest, compared, difference, most_similar, normalised

URI = "https://api.anthropic.com/v1/messages"
UUIDS = ("1b4e28ba-2fa1-41d2-883f-0016d3cca427", "00000000-0000-4000-8000-0123456789ab")
IDS = ("toolu_0123456789ABCDEFGHIJ", "toolu_xxxx0123456789abcdef0123", "toolu_bdrk_0123456789ABCDEFGHIJ")


def sent(value: Any, *, method: str = "POST", uri: str = URI, ignore: tuple[str, ...] = ()) -> ComparedRequest:
    return compared(method, uri, json.dumps(value).encode(), ignore=ignore)


def asked(content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}

SAME = {
    "the order of keys": ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
    "how a number is written": ({"temperature": 1}, {"temperature": 1.0}),
    "a marked block": (
        asked([{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]),
        asked([{"type": "text", "text": "hi"}, {"type": "text", "text": "you", "cache_control": EPHEMERAL}]),
    ),
    "a text that became a block": (
        asked("hi", system="be kind"),
        asked(
            [{"type": "text", "text": "hi", "cache_control": EPHEMERAL}],
            system=[{"type": "text", "text": "be kind", "cache_control": EPHEMERAL}],
        ),
    ),
    "an automatic marker": (asked("hi"), asked("hi", cache_control=EPHEMERAL)),
    "a cache point": (
        {"system": [{"text": "s"}], "toolConfig": {"tools": [{"toolSpec": {"name": "add"}}]}},
        {
            "system": [{"text": "s"}, {"cachePoint": {"type": "default"}}],
            "toolConfig": {"tools": [{"toolSpec": {"name": "add"}}, {"cachePoint": {"type": "default"}}]},
        },
    ),
    "identifiers": (asked(f"{IDS[0]} {UUIDS[0]} {IDS[0]}"), asked(f"{IDS[2]} {UUIDS[1]} {IDS[2]}")),
    "their digests": ({"id": IDS[0]}, {"id": IDS[1]}),
    "Bedrock's identifiers": ({"toolUseId": "tooluse_kZJM-vQmRJ6eAyJE5GIl7Q"}, {"toolUseId": "tooluse_a_" + "b" * 20}),
}

OTHER = {
    "a text": (asked("hi"), asked("hi!")),
    "a truth and a number": ({"stream": True}, {"stream": 1}),
    "a number and its text": ({"n": 1}, {"n": "1"}),
    "the order of a list": ({"a": [1, 2]}, {"a": [2, 1]}),
    "a field that is null": ({"a": None}, {}),
    "whom a result belongs to": (
        {"calls": list(IDS[:2]), "results": list(IDS[:2])},
        {"calls": list(IDS[:2]), "results": [IDS[1], IDS[0]]},
    ),
    "the kind of an identifier": ({"id": "msg_0123456789abcdefghij"}, {"id": IDS[0]}),
    "a long name": (asked("file_processing_result_first"), asked("file_processing_result_other")),
    "an argument that is called like a marker": ({"cache_control": "no-store"}, {}),
    "two blocks and one": (asked("hiyou"), asked([{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}])),
    "a citation": (asked("hi"), asked([{"type": "text", "text": "hi", "citations": [1]}])),
}


@pytest.mark.parametrize("name", SAME)
def test_it_is_not_compared(name: str) -> None:
    one, other = SAME[name]
    assert sent(one) == sent(other)
    assert sent(one).lines == sent(other).lines


@pytest.mark.parametrize("name", OTHER)
def test_it_is_compared(name: str) -> None:
    one, other = OTHER[name]
    assert sent(one) != sent(other)
    assert difference(sent(one), sent(other))


def test_method_host_and_path_are_compared() -> None:
    assert sent({}) != sent({}, method="PUT")
    assert sent({}, method="post") == sent({})
    assert sent({}) != sent({}, uri="https://example.com/v1/messages")
    assert sent({}) != sent({}, uri=f"{URI}/count_tokens")


def test_scheme_port_and_query_are_not() -> None:
    assert sent({}) == sent({}, uri="http://api.anthropic.com:8080/v1/messages?beta=true")


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        ("metadata.user_id", {"metadata": {"user_id": "a", "b": 1}}, {"metadata": {"user_id": "c", "b": 1}}),
        ("metadata.user_id", {"metadata": {"user_id": "a"}}, {}),
        ("messages.0.content", asked("hi"), asked("you")),
        ("messages.*.time", {"messages": [{"time": 1, "a": 1}, {"time": 2}]}, {"messages": [{"a": 1}]}),
        ("*.time", {"a": {"time": 1, "b": 1}, "c": {"time": 2, "d": 1}}, {"a": {"b": 1}, "c": {"d": 1}}),
        ("list.*", {"list": [1, 2, 3], "a": 1}, {"list": [4], "a": 1}),
    ],
)
def test_a_path_is_ignored(path: str, one: Any, other: Any) -> None:
    assert sent(one) != sent(other)
    assert sent(one, ignore=(path,)) == sent(other, ignore=(path,))


@pytest.mark.parametrize("path", ["a.b", "a.0", "messages.7.content", "messages.role", "", "model.x"])
def test_a_path_that_leads_nowhere_changes_nothing(path: str) -> None:
    assert sent(asked("hi"), ignore=(path,)) == sent(asked("hi"))
    assert normalised(b"[]", ignore=(path,)) == []


def test_what_was_empty_stays() -> None:
    assert normalised('{"a": {"b": {}}}', ignore=("a.b.c",)) == {"a": {"b": {}}}


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (None, None),
        (b"", None),
        (b"plain text", "plain text"),
        (b"b=2&a=1&a=x%20y", [["a", "1"], ["a", "x y"], ["b", "2"]]),
        (b"{not json=1}", "{not json=1}"),
        ("text", "text"),
        (b"NaN", None),
    ],
)
def test_other_bodies(body: bytes | str | None, value: Any) -> None:
    if body == b"NaN":
        assert compared("GET", URI, body) == compared("GET", URI, body)
    else:
        assert normalised(body) == value


def test_bytes_are_compared_by_their_digest() -> None:
    assert normalised(b"\xff\0") == normalised(b"\xff\0")
    assert normalised(b"\xff\0") != normalised(b"\xff\1")


def test_half_a_pair_can_be_printed() -> None:
    request = compared("POST", URI, rb'{"a": "\ud83d"}')
    assert "\n".join(request.lines).encode()


def test_what_is_nested_deeply_is_text() -> None:
    body = b"[" * 100_000
    assert compared("POST", URI, body) == compared("POST", URI, body)


def test_the_most_similar_is_the_one_with_the_most_lines_in_common() -> None:
    system = "one\ntwo\nthree"
    recorded = [sent(asked("hi")), sent(asked("hi!", system=system)), sent(asked("hi!", system=system))]
    assert most_similar(sent(asked("hey", system=system)), recorded) == 1
    assert most_similar(sent(asked("hey"), uri="https://example.com/"), recorded) == 0
    assert most_similar(sent({}), []) is None


def test_an_address_counts_more_than_a_body() -> None:
    recorded = [sent(asked("hi"), uri=f"{URI}/count_tokens"), sent({"other": 1})]
    assert most_similar(sent(asked("hi")), recorded) == 1


def test_a_difference_is_a_unified_diff() -> None:
    one, other = sent(asked("What is 2+3?", temperature=1)), sent(asked("What is 2+4?"))
    assert difference(one, other, name="recorded 1") == "\n".join(
        [
            "--- recorded 1",
            "+++ sent",
            "@@ -2,9 +2,10 @@",
            " {",
            '   "messages": [',
            "     {",
            '-      "content": "What is 2+4?"',
            '+      "content": "What is 2+3?"',
            '       "role": "user"',
            "     }",
            "   ]",
            '   "model": "m"',
            '+  "temperature": 1',
            " }",
        ]
    )


def test_another_address_is_part_of_it() -> None:
    shown = difference(sent({}, method="GET"), sent({}))
    assert "-POST api.anthropic.com/v1/messages" in shown
    assert "+GET api.anthropic.com/v1/messages" in shown


def test_long_texts_are_wrapped_and_data_is_not_shown() -> None:
    prose = "word " * 60 + "\nlast line"
    lines = sent(asked(prose, image="QUJD" * 1000)).lines
    assert max(map(len, lines)) < 130
    assert any(line.endswith('"last line"') for line in lines)
    assert [line for line in lines if "4000 characters of data" in line]
    text = "".join(json.loads(line) for line in lines if "word" in line and '": ' not in line)
    assert text in prose


def test_a_difference_is_not_endless() -> None:
    shown = difference(sent({"a": list(range(1000))}), sent({"b": list(range(2000, 3000))})).splitlines()
    assert len(shown) == 121
    assert shown[-1].endswith("more lines")
