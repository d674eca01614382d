"""Whom the command line can ask, and what it makes an adapter of."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any

from rxloop.adapters.base import Adapter
from rxloop.errors import ConfigurationError

__all__ = ("Provider", "adapter_for")

_MAX_TOKENS = 8192
_NO_KEY = "there are no credentials: set ANTHROPIC_API_KEY"


class Provider(StrEnum):
    """The providers' names."""

    anthropic = "anthropic"
    google_ai = "google-ai"
    vertex = "vertex"
    bedrock = "bedrock"
    sagemaker = "sagemaker"


@contextlib.asynccontextmanager
async def adapter_for(provider: Provider, model: str | None, max_tokens: int | None) -> AsyncIterator[Adapter]:
    """
    An adapter whose client is closed afterwards; credentials come from the environment.

    Args:
        provider: whom to ask.
        model: a current one if not given; AWS has none that is everywhere, so that it must be given there.
        max_tokens: the most tokens of a reply; if not given 8192, on AWS as many as the model takes.

    Raises:
        ConfigurationError: there are none, a proxy or the certificates cannot be used, the SDK is missing, there is no
            model, or this version does not know it.
    """
    most = _MAX_TOKENS if max_tokens is None else max_tokens
    if provider is Provider.anthropic:
        from rxloop.adapters.anthropic import AnthropicAdapter

        async with _anthropic_client() as client:
            yield AnthropicAdapter(client, model="claude-sonnet-5-5" if model is None else model, max_tokens=most)
    elif provider is Provider.google_ai or (
        provider is Provider.vertex and ("gemini" if model is None else model).startswith("gemini")
    ):
        from rxloop.adapters.gemini import GeminiAdapter

        async with _google_client(vertex=provider is Provider.vertex) as client:
            yield GeminiAdapter(client, model="gemini-3.8-flash" if model is None else model, max_output_tokens=most)
    elif provider is Provider.vertex:
        from rxloop.adapters.anthropic import AnthropicAdapter

        async with _vertex_client() as client:
            yield AnthropicAdapter(client, model=str(model), max_tokens=most)
    else:
        async with _aws_adapter(provider, model, {} if max_tokens is None else {"max_tokens": max_tokens}) as adapter:
            yield adapter


@contextlib.asynccontextmanager
async def _anthropic_client() -> AsyncIterator[Any]:
    try:
        from anthropic import AnthropicError, AsyncAnthropic
    except ImportError as error:
        raise ConfigurationError(
            'the provider anthropic needs its extra: pip install "rxloop[anthropic,cli]"'
        ) from error
    _check_network()
    try:
        client = AsyncAnthropic(max_retries=0)
    except AnthropicError as error:
        raise ConfigurationError(f"{_NO_KEY} (the SDK says: {error})") from error
    except ValueError as error:
        raise ConfigurationError(f"the anthropic SDK refuses its environment: {error}") from error
    known = any(getattr(client, name, None) for name in ("api_key", "auth_token", "credentials"))
    if not known and "ANTHROPIC_CUSTOM_HEADERS" not in os.environ:
        raise ConfigurationError(_NO_KEY)
    async with client:
        yield client


def _check_network() -> None:
    """
    Find out what the environment says of proxies and certificates, before an SDK stumbles over it.

    Raises:
        ConfigurationError: no client can be made with it.
    """
    import httpx2

    try:
        httpx2.AsyncClient()
    except OSError as error:
        found = _set("SSL_CERT_FILE", "SSL_CERT_DIR")
        if not found:
            raise
        named = ", ".join(f"{name}={os.environ[name]}" for name in found)
        raise ConfigurationError(f"the certificates of {named} cannot be read: {error.strerror or error}") from error
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        found = _set("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
        if not found:
            raise
        # what is said of an address that cannot be read may quote a part of its password
        said = "it is not an address" if isinstance(error, httpx2.InvalidURL) else str(error)
        raise ConfigurationError(f"the proxy of {' or '.join(found)} cannot be used: {said}") from error


def _set(*names: str) -> list[str]:
    return [name for name in names if os.environ.get(name)]


@contextlib.asynccontextmanager
async def _vertex_client() -> AsyncIterator[Any]:
    try:
        import google.auth  # noqa: F401
        from anthropic import AsyncAnthropicVertex
    except ImportError as error:
        raise ConfigurationError('Claude on Vertex needs its extra: pip install "rxloop[vertex,cli]"') from error
    project, region = _vertex_place()
    _check_network()
    async with AsyncAnthropicVertex(project_id=project, region=region, max_retries=0) as client:
        yield client


def _vertex_place() -> tuple[str, str]:
    project = os.environ.get("GOOGLE_CLOUD_PROJECT")
    if not project:
        raise ConfigurationError("vertex needs a project: set GOOGLE_CLOUD_PROJECT (GOOGLE_CLOUD_LOCATION: global)")
    return project, os.environ.get("GOOGLE_CLOUD_LOCATION", "global")


@contextlib.asynccontextmanager
async def _google_client(*, vertex: bool) -> AsyncIterator[Any]:
    try:
        from google import genai
        from google.auth.exceptions import GoogleAuthError
    except ImportError as error:
        raise ConfigurationError('Gemini needs its extra: pip install "rxloop[google,cli]"') from error
    project, location = _vertex_place() if vertex else ("", "")
    _check_network()
    try:
        if vertex:
            client = genai.Client(vertexai=True, project=project, location=location)
        else:
            client = genai.Client(vertexai=False)
    except (GoogleAuthError, ValueError) as error:
        name = "application default credentials" if vertex else "GEMINI_API_KEY"
        raise ConfigurationError(f"there are no credentials: set {name} (the SDK says: {error})") from error
    try:
        yield client
    finally:
        await client.aio.aclose()


@contextlib.asynccontextmanager
async def _aws_adapter(provider: Provider, model: str | None, fields: dict[str, Any]) -> AsyncIterator[Adapter]:
    from rxloop.adapters.bedrock import BedrockAdapter
    from rxloop.adapters.sagemaker import SageMakerAdapter

    bedrock = provider is Provider.bedrock
    if model is None:
        what = "a model's or an inference profile's ID or ARN" if bedrock else "an endpoint's name"
        raise ConfigurationError(f"{provider.value} needs a model: give {what} as --model")
    adapter: BedrockAdapter | SageMakerAdapter
    adapter = BedrockAdapter(model=model, **fields) if bedrock else SageMakerAdapter(model=model, **fields)
    async with adapter:
        yield adapter
