"""A turn's events read from where they were kept."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.ui.entry import TurnFailed, is_end, stream_event_from_dict
from rxloop.usage import Usage


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (
            {"error": {"kind": "server"}, "usage": {"input_tokens": 2}, "text": "so"},
            ({"kind": "server"}, Usage(2), "so"),
        ),
        ({"error": "gone", "usage": 5, "text": None}, ({"message": "gone"}, Usage(), "")),
        ({"usage": {"input_tokens": "2", "output_tokens": 1}}, ({"message": "the turn failed"}, Usage(0, 1), "")),
    ],
)
def test_a_failure_is_an_end_whatever_a_later_version_writes_of_it(data: dict[str, Any], event: Any) -> None:
    read = stream_event_from_dict({"type": "error", **data})
    assert read == TurnFailed(*event)
    assert is_end(read)
