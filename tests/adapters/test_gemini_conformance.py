"""The Gemini adapter keeps what every adapter has to keep: on both platforms, and on the SDK's events too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rxloop.testing.conformance import AdapterConformance
from tests.adapters.gemini_provider import GeminiProvider
from tests.providers.gemini import GeminiServer


class _OnPublicEvents(GeminiProvider):
    """Without the bytes, as with an SDK that does not give them."""

    def adapter(self) -> Any:
        adapter = super().adapter()
        adapter._send = None
        return adapter


class TestAIStudio(AdapterConformance):
    @pytest.fixture
    def provider(self) -> Iterator[GeminiProvider]:
        with GeminiServer() as server:
            yield GeminiProvider(server, vertex=False)


class TestVertex(AdapterConformance):
    @pytest.fixture
    def provider(self) -> Iterator[GeminiProvider]:
        with GeminiServer() as server:
            yield GeminiProvider(server, vertex=True)


class TestPublicEvents(AdapterConformance):
    @pytest.fixture
    def provider(self) -> Iterator[GeminiProvider]:
        with GeminiServer() as server:
            yield _OnPublicEvents(server, vertex=False)
