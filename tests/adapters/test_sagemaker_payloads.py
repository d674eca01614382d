"""What containers write, fed to the decoder as bytes that are cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rxloop.adapters.sagemaker_payloads import AutoPayload, error_of_document, finish_reason_of
from rxloop.errors import (
    ContextOverflowError,
    InvalidRequestError,
    MalformedResponseError,
    ModelNotFoundError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    ServerError,
    StreamInterruptedError,
)
from tests.providers.http import split_every
from tests.providers.sagemaker import json_line, llama, lmi, lmi_error, openai, openai_error, sse, tgi, tgi_error

PIECES = ("Grü", "ße, ", "Wörld ", "🌍\n", "\u2028bye")
TEXT = "".join(PIECES)
OPENAI = {"prompt_tokens": 20, "completion_tokens": 9}


def read(*parts: bytes) -> tuple[list[str], AutoPayload]:
    payload = AutoPayload()
    pieces: list[str] = []
    for part in parts:
        pieces += payload.feed(part)
    pieces += payload.close()
    return [piece for piece in pieces if piece], payload


def known(payload: AutoPayload) -> tuple[str | None, dict[str, int]]:
    return payload.raw_stop_reason, payload.usage


def completions(*pieces: str, reason: str | None = "stop", lines: bool = False) -> list[bytes]:
    """Chunks of a text completion, as vLLM writes them."""
    write: Callable[[Any], bytes] = json_line if lines else sse

    def chunk(text: str, reason: str | None) -> Any:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        return {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice]}

    writes = [write(chunk(piece, None)) for piece in pieces[:-1]] + [write(chunk(pieces[-1], reason))]
    usage = write({"id": "cmpl-1", "object": "text_completion", "choices": [], "usage": OPENAI})
    return [*writes, usage] if lines else [*writes, usage, sse("[DONE]")]


def legacy_lmi(*pieces: str) -> list[bytes]:
    """What older releases of Large Model Inference write by themselves."""
    return [json_line({"outputs": [piece]}) for piece in pieces]


COUNTED = {"input_tokens": 20, "output_tokens": 9}
FORMATS: dict[str, tuple[list[bytes], str | None, dict[str, int]]] = {
    "openai": (openai(*PIECES, usage=OPENAI), "stop", COUNTED),
    "openai with reasoning": (openai(*PIECES, reasoning=["hm"], usage=OPENAI), "stop", COUNTED),
    "openai without usage": (openai(*PIECES, usage=None), "stop", {}),
    "openai lines": (openai(*PIECES, usage=OPENAI, lines=True), "stop", COUNTED),
    "completions": (completions(*PIECES), "stop", COUNTED),
    "completion lines": (completions(*PIECES, lines=True), "stop", COUNTED),
    "tgi": (tgi(*PIECES, generated_tokens=9, input_length=20), "eos_token", COUNTED),
    "tgi without input_length": (tgi(*PIECES, generated_tokens=9), "eos_token", {"output_tokens": 9}),
    "tgi without details": (tgi(*PIECES, finish_reason=None), None, {}),
    "tgi without a special token": (tgi(*PIECES, special=None, finish_reason="length"), "length", {"output_tokens": 5}),
    "lmi": (lmi(*PIECES, generated_tokens=9), "eos_token", {"output_tokens": 9}),
    "lmi without details": (lmi(*PIECES, finish_reason=None), None, {}),
    "lmi events": (lmi(*PIECES, generated_tokens=9, server_sent=True), "eos_token", {"output_tokens": 9}),
    "legacy lmi": (legacy_lmi(*PIECES), None, {}),
    "llama": (llama(*PIECES, prompt_token_count=20), "stop", {"input_tokens": 20, "output_tokens": 5}),
}
every_format = pytest.mark.parametrize("name", FORMATS)


@every_format
def test_a_reply_is_its_pieces(name: str) -> None:
    writes, reason, usage = FORMATS[name]
    pieces, payload = read(*writes)
    assert pieces == list(PIECES)
    assert known(payload) == (reason, usage)
    assert payload.raw_usage == {} if not usage else set(payload.raw_usage.values()) == set(usage.values())


@every_format
def test_every_piece_comes_with_its_write(name: str) -> None:
    writes, _, _ = FORMATS[name]
    payload = AutoPayload()
    at_once = [list(filter(None, payload.feed(write))) for write in writes]
    assert [piece for pieces in at_once for piece in pieces] == list(PIECES)
    assert max(map(len, at_once)) == 1


@every_format
@pytest.mark.parametrize("size", [*range(1, 20), 37, 64, 1000])
def test_parts_of_any_size_say_the_same(name: str, size: int) -> None:
    writes, reason, usage = FORMATS[name]
    pieces, payload = read(*split_every(b"".join(writes), size))
    assert pieces == list(PIECES)
    assert known(payload) == (reason, usage)


@every_format
def test_a_payload_in_two_parts_says_the_same(name: str) -> None:
    writes, reason, usage = FORMATS[name]
    whole = b"".join(writes)
    for cut in range(len(whole) + 1):
        pieces, payload = read(whole[:cut], whole[cut:])
        assert pieces == list(PIECES), cut
        assert known(payload) == (reason, usage), cut


@every_format
def test_a_payload_that_is_cut_off_is_whole_only_with_its_end(name: str) -> None:
    """And once it is whole, it stays so; only a format without any mark has several ends."""
    writes, _, _ = FORMATS[name]
    whole = b"".join(writes)
    complete = 0
    for cut in range(len(whole) + 1):
        payload = AutoPayload()
        pieces = list(payload.feed(whole[:cut]))
        try:
            pieces += payload.close()
        except StreamInterruptedError:
            assert not complete or name == "legacy lmi", cut
            assert TEXT.startswith("".join(pieces))
        else:
            complete += 1
            assert "".join(pieces) == TEXT or name == "legacy lmi", cut
    assert complete >= 1


def test_a_last_line_needs_no_line_end() -> None:
    for writes in (lmi(*PIECES), llama(*PIECES), openai(*PIECES, lines=True), legacy_lmi(*PIECES)):
        pieces, _ = read(b"".join(writes).rstrip())
        assert pieces == list(PIECES)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_events_may_have_any_line_end(line_end: bytes) -> None:
    whole = b"".join(openai(*PIECES)).replace(b"\n", line_end)
    for size in (1, 2, 3, 7, len(whole)):
        pieces, payload = read(*split_every(whole, size))
        assert pieces == list(PIECES)
        assert payload.complete


def test_lines_may_have_blank_ones_between() -> None:
    pieces, _ = read(b"\n \r\n" + b"\r\n\n".join(line.rstrip() for line in llama(*PIECES)))
    assert pieces == list(PIECES)


def test_nothing_is_read_after_the_end() -> None:
    for writes in (openai(*PIECES), tgi(*PIECES), lmi(*PIECES), llama(*PIECES)):
        payload = AutoPayload()
        pieces = list(payload.feed(b"".join(writes) + b"what else?\n\n"))
        assert payload.complete
        assert [piece for piece in pieces if piece] == list(PIECES)
        assert list(payload.close()) == []


# whole documents


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("document", "reason", "usage"),
    [
        (
            {
                "object": "chat.completion",
                "choices": [{"index": 0, "message": {"content": TEXT}, "finish_reason": "stop"}],
                "usage": OPENAI,
            },
            "stop",
            COUNTED,
        ),
        (
            {"object": "text_completion", "choices": [{"index": 0, "text": TEXT, "finish_reason": "length"}]},
            "length",
            {},
        ),
        ({"choices": [{"message": {"role": "assistant", "content": TEXT}}]}, None, {}),
        (
            {"choices": [{"message": {"content": [{"type": "text", "text": TEXT}]}, "finish_reason": "stop"}]},
            "stop",
            {},
        ),
        ({"generated_text": TEXT}, None, {}),
        ([{"generated_text": TEXT}], None, {}),
        (
            {"generated_text": TEXT, "details": {"finish_reason": "eos_token", "generated_tokens": 9}},
            "eos_token",
            {"output_tokens": 9},
        ),
        (
            {"generation": TEXT, "prompt_token_count": 20, "generation_token_count": 9, "stop_reason": "stop"},
            "stop",
            COUNTED,
        ),
        ([{"generation": {"role": "assistant", "content": TEXT}}], None, {}),
        ({"outputs": [TEXT]}, None, {}),
    ],
)
def test_a_whole_document_is_a_reply(document: Any, reason: str | None, usage: dict[str, int], indent: int) -> None:
    whole = json.dumps(document, indent=indent).encode()
    for size in (1, 5, len(whole)):
        for end in (b"", b"\n"):
            pieces, payload = read(*split_every(whole + end, size))
            assert pieces == [TEXT]
            assert known(payload) == (reason, usage)
    for cut in range(1, len(whole)):
        payload = AutoPayload()
        assert list(payload.feed(whole[:cut])) == []
        with pytest.raises(StreamInterruptedError):
            list(payload.close())


# what is no text


def test_special_tokens_are_no_text() -> None:
    for key in ("special", "special_token"):
        writes = [json_line({"token": {"text": "<s>", key: True}}), *lmi("a", "b")]
        assert read(*writes)[0] == ["a", "b"]


def test_the_first_of_several_answers_is_the_turns() -> None:
    def chunk(index: int, text: str, reason: str | None = None) -> bytes:
        return sse({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": reason}]})

    pieces, payload = read(chunk(0, "a"), chunk(1, "x"), chunk(0, "b", "stop"), chunk(1, "y", "length"), sse("[DONE]"))
    assert pieces == ["a", "b"]
    assert payload.raw_stop_reason == "stop"


def test_unknown_records_and_events_are_skipped() -> None:
    writes = openai(*PIECES)
    odd = [b": a comment\n\n", sse({"future": [1]}, name="future"), b"retry: 10\n\n", b"data\n\n", b"data:\n\n"]
    pieces, _ = read(*(part for write in writes for part in (*odd, write)))
    assert pieces == list(PIECES)
    pieces, _ = read(*(part for write in llama(*PIECES) for part in (json_line({"future": 1}), write)))
    assert pieces == list(PIECES)


def test_the_last_figures_win() -> None:
    def chunk(text: str, **more: Any) -> bytes:
        return sse({"choices": [{"index": 0, "delta": {"content": text}}], **more})

    details = {"prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 2}}
    _, payload = read(
        chunk("a", usage={"prompt_tokens": 7, "completion_tokens": 1}),
        chunk("b", usage={"prompt_tokens": 7, "completion_tokens": 3, **details}),
        chunk("c", usage=None),
        sse("[DONE]"),
    )
    assert payload.usage == {"input_tokens": 7, "output_tokens": 3, "cache_read_tokens": 5, "reasoning_tokens": 2}
    assert payload.raw_usage == {"prompt_tokens": 7, "completion_tokens": 3, **details}


@pytest.mark.parametrize("value", [-1, 1.5, "7", True, None, [7], {}, 2**63, 1e300, float("nan"), float("inf")])
def test_a_figure_that_is_none_does_not_count(value: Any) -> None:
    usage = {"prompt_tokens": value, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": value}}
    pieces, payload = read(*openai("a", usage=None, done=False), sse({"choices": [], "usage": usage}), sse("[DONE]"))
    assert (pieces, payload.usage, payload.raw_usage) == (["a"], {"output_tokens": 5}, {"completion_tokens": 5})


@pytest.mark.parametrize("usage", [[7], 3, "7", {"prompt_tokens_details": 3}])
def test_usage_that_is_none_does_not_count(usage: Any) -> None:
    pieces, payload = read(*openai("a", usage=None, done=False), sse({"choices": [], "usage": usage}), sse("[DONE]"))
    assert (pieces, payload.usage) == (["a"], {})


def test_a_whole_figure_may_be_written_with_a_point() -> None:
    _, payload = read(*tgi("a", generated_tokens=7, input_length=1.0))
    assert payload.usage == {"input_tokens": 1, "output_tokens": 7}
    assert type(payload.usage["input_tokens"]) is int


def test_numbers_that_are_none_do_not_matter_where_nobody_reads_them() -> None:
    writes = [write.replace(b"-0.25", b"-Infinity") for write in lmi(*PIECES)]
    assert read(*writes)[0] == list(PIECES)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("eos_token", "stop"),
        ("stop", "stop"),
        ("stop_sequence", "stop"),
        ("end_turn", "stop"),
        ("STOP", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content-filter"),
        ("tool_calls", "other"),
        ("abort", "other"),
        (None, "other"),
    ],
)
def test_finish_reasons(raw: str | None, reason: str) -> None:
    assert finish_reason_of(raw) == reason


# errors


def failing(*parts: bytes) -> tuple[list[str], Exception]:
    payload = AutoPayload()
    pieces: list[str] = []
    try:
        for part in parts:
            # one by one: what came before the error counts
            pieces.extend(payload.feed(part))
        pieces.extend(payload.close())
    except Exception as error:
        return [piece for piece in pieces if piece], error
    raise AssertionError(f"the payload must fail, but gave {pieces}")


@pytest.mark.parametrize(
    ("writes", "kind"),
    [
        (openai_error(), ServerError),
        (openai_error("too many", 429, "TooManyRequests"), RateLimitedError),
        (openai_error("no", 400, "BadRequestError"), InvalidRequestError),
        (
            openai_error("This model's maximum context length is 8 tokens.", 400, "BadRequestError"),
            ContextOverflowError,
        ),
        (openai_error("no such model", 404, "NotFoundError"), ModelNotFoundError),
        (tgi_error(), ServerError),
        (tgi_error("Model is overloaded", "overloaded"), OverloadedError),
        (tgi_error("Input validation error: `top_p` must be > 0.0 and < 1.0", "validation"), InvalidRequestError),
        (
            tgi_error("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096", "validation"),
            ContextOverflowError,
        ),
        (tgi_error("Incomplete generation", "incomplete_generation"), ServerError),
        ([sse({"error": "something broke"})], ServerError),
        ([sse({"error": {"message": "slow down", "code": "rate_limit_exceeded"}})], RateLimitedError),
        ([sse({"object": "error", "message": "no", "type": "BadRequestError", "code": 400})], InvalidRequestError),
        ([sse({"code": 503, "message": "no worker"})], OverloadedError),
        ([sse({"error": "failed", "code": 424})], ServerError),
        (lmi_error(server_sent=True), ServerError),
        ([b'{"error": {"message": "not an event", "code": 500}}\n'], ServerError),
    ],
)
def test_errors_inside_a_reply(writes: list[bytes], kind: type[ProviderError]) -> None:
    begun = openai("so ", "far", finish_reason=None, usage=None, done=False)
    for before, text in ((begun, ["so ", "far"]), ([], [])):
        pieces, error = failing(*before, *writes)
        assert pieces == text
        assert type(error) is kind
        assert isinstance(error, kind)
        assert (error.provider, error.status) == ("sagemaker", None)
        # in the same part, and without the end of its line
        pieces, error = failing(b"".join([*before, *writes]).rstrip())
        assert pieces == text
        assert type(error) is kind


@pytest.mark.parametrize("value", [{"message": "broke", "code": 500}, "broke"])
def test_an_error_in_a_line(value: Any) -> None:
    pieces, error = failing(*llama("so ", "far", stop_reason=None), json_line({"error": value}))
    assert pieces == ["so ", "far"]
    assert type(error) is ServerError
    assert str(error) == "broke"
    assert type(failing(*lmi_error())[1]) is ServerError


def test_an_error_that_is_none_is_none() -> None:
    writes = [json_line({**json.loads(write), "error": None}) for write in llama(*PIECES)]
    assert read(*writes)[0] == list(PIECES)


def test_a_message_without_end_is_cut() -> None:
    error = error_of_document({"error": "x" * 10_000})
    assert len(str(error)) < 2100
    assert "(10000 characters)" in str(error)


@pytest.mark.parametrize(
    ("document", "status", "kind"),
    [
        ({"error": "overloaded", "error_type": "overloaded"}, 429, OverloadedError),
        ({"error": "no"}, 400, InvalidRequestError),
        ({"error": "no"}, 422, InvalidRequestError),
        ({"error": "failed"}, 424, ServerError),
        ("plain text", 500, ServerError),
        ("plain text", None, ServerError),
        ({"error": "come back"}, 503, OverloadedError),
        ({"message": "input is too long"}, 400, ContextOverflowError),
    ],
)
def test_errors_instead_of_a_reply(document: Any, status: int | None, kind: type[ProviderError]) -> None:
    assert type(error_of_document(document, status)) is kind


# what is no format


@pytest.mark.parametrize(
    "data",
    [
        b"<html>502</html>", b"Hello there", b"\x00\x01", b"5", b'"text"', b"data is good", b"dear", b"events", b"I",
        b"ID", b"ideas: two", b"retry that", b"danger\n", b"data\n", b":) hello\nworld", b": a\n: b\n\nno comment",
    ],
)  # fmt: skip
def test_what_is_neither_json_nor_events_is_refused_at_once(data: bytes) -> None:
    for size in (1, 2, len(data)):
        _, error = failing(*split_every(data, size))
        assert isinstance(error, MalformedResponseError)
        assert "must be lines of JSON or server-sent events, but got" in str(error)
        assert "give a decoder as payload=" in str(error)
        assert not error.retryable


@pytest.mark.parametrize("data", [b":) hello", b": ", b"[INST] hi", b"[INST] hi\nthere", b"{hello}", b"{{ a }}\n"])
def test_what_turns_out_to_be_no_format_at_its_end(data: bytes) -> None:
    for size in (1, len(data)):
        with pytest.raises(MalformedResponseError, match="give a decoder as payload=") as caught:
            read(*split_every(data, size))
        assert not caught.value.retryable


@pytest.mark.parametrize("data", [b"d", b"data", b"event", b"i", b"ret", b": a comment\n\nda", b": a\n\n: b"])
def test_a_payload_that_ends_before_its_format_is_known_broke_off(data: bytes) -> None:
    for size in (1, len(data)):
        with pytest.raises(StreamInterruptedError, match="ended before its format was known"):
            read(*split_every(data, size))


@pytest.mark.parametrize(
    "begin", [b"data:", b"event: x\ndata: ", b"id:7\ndata:", b"retry: 5\n\ndata:", b":\r\n\r\ndata:"]
)
def test_a_field_at_the_beginning_tells_events(begin: bytes) -> None:
    whole = begin + b"".join(openai(*PIECES)).removeprefix(b"data:")
    for size in (1, 3, len(whole)):
        assert read(*split_every(whole, size))[0] == list(PIECES)


@pytest.mark.parametrize(
    "data", [b"data: <html>\n\n", b"data: Hello\n\n", b"event: x\n<html>\n\n", b"event: x\ndanger\n"]
)
def test_an_event_that_is_no_json_is_refused(data: bytes) -> None:
    begun = openai("so ", "far", finish_reason=None, usage=None, done=False)
    for before, text in ((begun, ["so ", "far"]), ([], [])):
        pieces, error = failing(*before, data)
        assert pieces == text
        assert isinstance(error, MalformedResponseError)
        assert "must be JSON" in str(error)


def test_a_line_that_is_no_json_is_refused() -> None:
    pieces, error = failing(*llama("so ", "far", stop_reason=None), b"<html>\n")
    assert pieces == ["so ", "far"]
    assert isinstance(error, MalformedResponseError)


@pytest.mark.parametrize(
    "record",
    [
        {"choices": 3},
        {"choices": [3]},
        {"choices": [{"delta": "a"}]},
        {"choices": [{"delta": {"content": 3}}]},
        {"choices": [{"delta": {"content": "a"}, "finish_reason": 3}]},
        {"token": "a"},
        {"token": {"text": 3}},
        {"generated_text": 3},
        {"token": {"text": "a"}, "details": 3},
        {"generation": 3},
        {"generation": "a", "stop_reason": 3},
        {"outputs": 3},
        [3],
    ],
)
def test_values_of_another_type_are_refused(record: Any) -> None:
    for write in (sse(record), json_line(record)):
        _, error = failing(write)
        assert isinstance(error, (AttributeError, TypeError, ValueError))


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b": only a comment\n\n"])
def test_a_payload_with_nothing_in_it_is_no_reply(data: bytes) -> None:
    with pytest.raises(StreamInterruptedError, match="before anything was in it"):
        read(data)


def test_records_of_no_known_format_are_no_reply() -> None:
    with pytest.raises(MalformedResponseError, match="give a decoder as payload=") as caught:
        read(json_line({"future": 1}), json_line({"future": 2}))
    assert not caught.value.retryable


def test_a_byte_order_mark_is_no_text() -> None:
    for writes in (openai(*PIECES), llama(*PIECES)):
        assert read(*split_every(b"\xef\xbb\xbf" + b"".join(writes), 1))[0] == list(PIECES)


@pytest.mark.parametrize(
    ("writes", "end"),
    [
        (openai("a", finish_reason=None, done=False), "a finish reason"),
        (tgi("a", "b")[:1], "generated_text or details"),
        (llama("a", stop_reason=None), "a stop reason"),
    ],
)
def test_a_reply_without_its_end_says_what_is_missing(writes: list[bytes], end: str) -> None:
    with pytest.raises(StreamInterruptedError, match=f"the reply must end with {end}, but the payload ended without"):
        read(*writes)


def test_done_is_an_end_without_a_reason() -> None:
    pieces, payload = read(*openai("a", finish_reason=None))
    assert pieces == ["a"]
    assert payload.complete
    assert payload.raw_stop_reason is None
