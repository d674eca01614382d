"""A client of boto3 that is answered from a recording."""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rxloop.errors import ConfigurationError
from rxloop.testing.cassette import Interaction

__all__ = ("recorded_client",)

_REGION = "us-east-1"
_session_lock = threading.Lock()


def recorded_client(service: str, response: Callable[[], Interaction]) -> Any:
    """
    A client of boto3 that sends nothing: every request is answered with what `response` returns.

    Nothing of the environment or of AWS's own files is read, so that no credentials and no endpoint are looked up.

    Args:
        service: as boto3 names it.
        response: called on the thread that makes the request.

    Raises:
        ConfigurationError: boto3 is not installed.

    Source: https://boto3.amazonaws.com/v1/documentation/api/latest/guide/events.html
    """
    try:
        from botocore.awsrequest import AWSResponse
        from botocore.config import Config
        from urllib3 import HTTPResponse
    except ImportError as error:
        raise ConfigurationError('replaying needs boto3: pip install "rxloop[aws]"') from error

    def answer(request: Any, **_: Any) -> Any:
        interaction = response()
        raw = HTTPResponse(
            io.BytesIO(interaction.body),
            headers=dict(interaction.headers),
            status=interaction.status,
            preload_content=False,
        )
        return AWSResponse(request.url, interaction.status, raw.headers, raw)

    config = Config(retries={"mode": "standard", "total_max_attempts": 1})
    with _session_lock:
        # a session is not safe among threads; a client is
        client = _session().create_client(
            service, region_name=_REGION, endpoint_url=f"https://{service}.{_REGION}.amazonaws.com", config=config
        )
    client.meta.events.register(f"before-send.{service}", answer)
    return client


@functools.cache
def _session() -> Any:
    # what makes a client slow is the service's model, which a session loads once
    from botocore.session import Session

    settings: Mapping[str, Any] = Session.SESSION_VARIABLES
    defaults = {name: (None, None, default, convert) for name, (_, _, default, convert) in settings.items()}
    files = {"config_file": (None, None, None, None), "credentials_file": (None, None, None, None)}
    session = Session(session_vars={**defaults, **files})
    session.set_credentials("replay", "replay")
    return session
