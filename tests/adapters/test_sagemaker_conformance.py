"""The conformance suite against SageMaker, over the bytes of its frames and over the SDK's public events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rxloop.adapters.base import Adapter
from rxloop.testing.conformance import AdapterConformance
from tests.adapters.sagemaker_provider import SageMakerProvider
from tests.providers.sagemaker import SageMakerServer


class PublicEventsProvider(SageMakerProvider):
    def adapter(self) -> Adapter:
        adapter: Any = super().adapter()
        adapter._as_bytes = False
        return adapter


class TestSageMaker(AdapterConformance):
    @pytest.fixture
    def provider(self) -> Iterator[SageMakerProvider]:
        with SageMakerServer() as server:
            yield SageMakerProvider(server)


class TestSageMakerPublicEvents(AdapterConformance):
    @pytest.fixture
    def provider(self) -> Iterator[SageMakerProvider]:
        with SageMakerServer() as server:
            yield PublicEventsProvider(server)
