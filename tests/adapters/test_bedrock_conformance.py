"""The conformance suite against Bedrock, over the bytes of its frames and over the SDK's public events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rxloop.adapters.base import Adapter
from rxloop.testing.conformance import AdapterConformance
from tests.adapters.bedrock_provider import BedrockProvider
from tests.providers.bedrock import BedrockServer


class PublicEventsProvider(BedrockProvider):
    def adapter(self) -> Adapter:
        adapter: Any = super().adapter()
        adapter._as_bytes = False
        return adapter


class TestBedrock(AdapterConformance):
    @pytest.fixture
    def provider(self) -> Iterator[BedrockProvider]:
        with BedrockServer() as server:
            yield BedrockProvider(server)


class TestBedrockPublicEvents(AdapterConformance):
    @pytest.fixture
    def provider(self) -> Iterator[BedrockProvider]:
        with BedrockServer() as server:
            yield PublicEventsProvider(server)
