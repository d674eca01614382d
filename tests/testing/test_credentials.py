"""What a cassette leaves out of a text that quotes credentials."""

from __future__ import annotations

import json

import pytest

from rxloop.testing import vcr_config
from rxloop.testing.cassette import without_credentials

GOOGLE = "AIza" + "aB3_-" * 7


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("bad key sk-ant-api03-very_secret-0123 here", "bad key recorded here"),
        ("a\tsk-proj-0123456789abcdef\nb", "a\trecorded\nb"),
        (f"key={GOOGLE}&alt=sse", "key=recorded&alt=sse"),
        ("\nAKIAABCDEFGHIJKLMNOP, ASIAABCDEFGHIJKLMNOP", "\nrecorded, recorded"),
        ("authorization: Bearer zzz", "authorization: Bearer recorded"),
        ('{"Authorization": "bearer zzz"}', '{"Authorization": "bearer recorded"}'),
        ("used bearer 0123456789abcdef.g", "used bearer recorded"),
        ("x-amz-security-token:SESSION\nhost:x", "x-amz-security-token:recorded\nhost:x"),
        ('{"X-Amz-Security-Token": "SESSION"}', '{"X-Amz-Security-Token": "recorded"}'),
        ('{"x-amz-security-token": null}', '{"x-amz-security-token": null}'),
        (f"SignedHeaders=host, Signature={'0a' * 32}", "SignedHeaders=host, Signature=recorded"),
        ("the bearer of task-force-0123456789abcdef, a Bearer token, sk-short", None),
    ],
)
def test_a_text_is_recorded_without_credentials(text: str, public: str | None) -> None:
    expected = text if public is None else public
    record = vcr_config()["before_record_response"]
    for written in (json.dumps({"message": text}), json.dumps({"message": json.dumps(text)})):
        once = record({"headers": {}, "body": {"string": written.encode()}})["body"]["string"].decode()
        assert without_credentials(once) == once
    response = {"headers": {}, "body": {"string": json.dumps({"message": text}).encode()}}
    assert json.loads(record(response)["body"]["string"]) == {"message": expected}
