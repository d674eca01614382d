"""What the tests of user interfaces share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ui.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that leave it running; keys are kept apart by their prefixes."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()
