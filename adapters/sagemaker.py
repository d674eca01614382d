"""Text from models on SageMaker endpoints, whatever their container."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import fields as fields_of
from functools import partial
from typing import Any, ClassVar

from pydantic_core import from_json, to_json

from rxloop.adapters.aws_errors import classify, error_of_code, is_error_code
from rxloop.adapters.aws_frames import FrameDecoder
from rxloop.adapters.aws_sdk import CLIENTS_OWN, call_for_stream, default_client, prepare
from rxloop.adapters.base import Adapter
from rxloop.adapters.http_errors import retry_after
from rxloop.adapters.messages import check_fields, check_model
from rxloop.adapters.sagemaker_payloads import (
    PROVIDER,
    AutoPayload,
    PayloadDecoder,
    error_of_document,
    finish_reason_of,
    whole_or_none,
)
from rxloop.adapters.text_stream import StreamRequest, TextStream
from rxloop.adapters.wire_values import copied
from rxloop.checks import function_or_none, instance
from rxloop.errors import ConfigurationError, MalformedResponseError, RxLoopError, describe
from rxloop.usage import Usage

__all__ = ("AutoPayload", "PayloadDecoder", "SageMakerAdapter", "inputs_body", "messages_body", "transcript")

_SERVICE = "sagemaker-runtime"
_OPERATION = "InvokeEndpointWithResponseStream"
_OWN_MEMBERS = ("Body", "EndpointName")
_CHARACTERS_PER_TOKEN = 4
_DRAIN_SECONDS = 1.0
_DECODERS_OWN = ("close", "complete", "feed", "raw_stop_reason", "raw_usage", "usage")
_FIGURES = tuple(field.name for field in fields_of(Usage))
_FORMAT_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)


def messages_body(request: StreamRequest, fields: Mapping[str, Any]) -> dict[str, Any]:
    """
    The body that OpenAI-compatible containers take: vLLM, Text Generation Inference from 2.0, Large Model Inference.

    Args:
        request: what is asked.
        fields: the adapter's fields, at the top: ``max_tokens``, ``temperature``, ``stop`` …

    Source: https://docs.djl.ai/docs/serving/serving/docs/lmi/user_guides/chat_input_output_schema.html
    """
    system = [] if request.system is None else [{"role": "system", "content": request.system}]
    return {"messages": [*system, *request.messages], "stream": True, **fields}


def inputs_body(
    request: StreamRequest, fields: Mapping[str, Any], *, template: Callable[[StreamRequest], str] | None = None
) -> dict[str, Any]:
    """
    The body that containers of plain text generation take: ``{"inputs": …, "parameters": …, "stream": true}``.

    Details are asked for, since the reason why a reply ended is in them.

    Args:
        request: what is asked.
        fields: the adapter's fields, which are parameters here: ``max_new_tokens``, ``temperature``, ``stop`` …
        template: makes the prompt, as the model's chat template would; `transcript` by default. Bind it with
            ``functools.partial``.

    Source: https://docs.djl.ai/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html
    """
    prompt = (template or transcript)(request)
    return {"inputs": prompt, "parameters": {"details": True, **fields}, "stream": True}


def transcript(request: StreamRequest) -> str:
    """The conversation as one text: a single message as it is, and more than that line by line, with their roles."""
    if request.system is None and len(request.messages) == 1:
        return str(request.messages[0]["content"])
    system = [] if request.system is None else [f"System: {request.system}"]
    said = [f"{message['role'].capitalize()}: {message['content']}" for message in request.messages]
    return "\n\n".join([*system, *said, "Assistant:"])


class SageMakerAdapter(Adapter):
    """
    A model on a SageMaker endpoint, over ``InvokeEndpointWithResponseStream``: text alone, without tools.

    Every reply is read on a thread of its own, which ends with it; disposing ends both at once. What the container
    does not count is estimated, at about 4 characters a token: then ``raw_usage`` has ``"estimated": True``, and a
    warning names the figures. Reasoning is left out, and is silence to the turn's clocks.

    Args:
        client: boto3's ``sagemaker-runtime`` client, which stays the caller's to close and keeps its settings: its own
            retries add to the turn's (``Config(retries={"total_max_attempts": 1})`` turns them off). By default one
            with the credentials and the region that boto3 finds, which the adapter closes: without retries, for 256
            connections.
        model: the endpoint's name.
        body: makes the request's body of what is asked and of the ``fields``: `messages_body`, `inputs_body`, or a
            function of one's own that returns a mapping, text or bytes.
        payload: makes a decoder of the reply for every step: `AutoPayload`, which tells the common formats by their
            content, or a `PayloadDecoder` of one's own.
        invocation: further members of the SDK's call: ``InferenceComponentName``, ``TargetVariant``,
            ``CustomAttributes``, ``SessionId``, ``Accept``, ``ContentType`` …
        fields: further fields for the body, by the container's names: ``max_tokens``, ``temperature``,
            ``stream_options={"include_usage": True}`` …

    Raises:
        ConfigurationError: boto3 is not installed, there is no region, the client is not one, or a value breaks its
            rule.
    """

    provider: ClassVar[str] = PROVIDER
    default_max_steps = 1
    supports_tools = False

    def __init__(
        self,
        client: Any = None,
        *,
        model: str,
        body: Callable[[StreamRequest, Mapping[str, Any]], Mapping[str, Any] | str | bytes] = messages_body,
        payload: Callable[[], PayloadDecoder] = AutoPayload,
        invocation: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        check_model(model)
        for unsupported in ("tools", "tool_choice"):
            if unsupported in fields:
                raise ConfigurationError(f"SageMakerAdapter supports no tools, but got {unsupported!r}")
        check_fields(
            fields,
            turns=("inputs", "messages", "stream", "system"),
            clients=CLIENTS_OWN,
            example=f'SageMakerAdapter(boto3.client("{_SERVICE}", {{}}), model=…)',
        )
        for name, function in (("body", body), ("payload", payload)):
            if function is None:
                raise ConfigurationError(f"{name} must be a function, but got None")
            function_or_none(name, function)
        for name, value in fields.items():
            try:
                copied(value)
            except ValueError as error:
                raise ConfigurationError(f"the field {name!r} cannot be sent: {error}") from error
        self.model = model
        self._body = body
        self._payload = payload
        self._fields = fields
        self._owns_client = client is None
        self.client = default_client(_SERVICE) if client is None else client
        if not hasattr(self.client, "invoke_endpoint_with_response_stream") or not hasattr(self.client, "meta"):
            raise ConfigurationError(f'client must be boto3.client("{_SERVICE}"), but got {type(self.client).__name__}')
        prepare(self.client, _SERVICE, "InvokeEndpointWithResponseStream")
        self._invocation = {"ContentType": "application/json", **_checked(self.client, invocation)}
        self._as_bytes = True

    async def aclose(self) -> None:
        """Close the client, if the adapter made it."""
        if self._owns_client:
            self.client.close()

    def close(self) -> None:
        """Close the client from synchronous code, if the adapter made it."""
        super().close()
        if self._owns_client:
            self.client.close()

    async def do_stream(self, request: StreamRequest) -> TextStream:
        """One streamed request; it goes out when the text is asked for."""
        if request.system is not None and not isinstance(request.system, str):
            raise ConfigurationError(f"system must be text, but got {request.system!r:.200}")
        body, payload = self._encoded(request), self._payload()
        for name in _DECODERS_OWN:
            if not hasattr(payload, name):
                raise ConfigurationError(
                    f"payload must make a PayloadDecoder, but {type(payload).__name__} has no {name!r}"
                )
        reply = _Reply(request, payload)
        return TextStream(
            self._text(body, reply),
            finish_reason=lambda: finish_reason_of(payload.raw_stop_reason),
            usage=reply.usage,
            raw_stop_reason=lambda: payload.raw_stop_reason,
            raw_usage=reply.raw_usage,
            warnings=reply.warnings,
        )

    def classify_error(self, error: Exception) -> Exception:
        """What the SDK, its transport or the container reports, in rxloop's terms."""
        response = getattr(error, "response", None)
        if isinstance(response, Mapping) and (response.get("Error") or {}).get("Code") == "ModelError":
            return _of_container(error, response)
        return classify(error, PROVIDER)

    def _encoded(self, request: StreamRequest) -> bytes:
        body = self._body(request, self._fields)
        if isinstance(body, bytes):
            return body
        if isinstance(body, str):
            return body.encode()
        if not isinstance(body, Mapping):
            raise ConfigurationError(f"body must return a mapping, text or bytes, but got {body!r:.200}")
        try:
            return to_json(copied(body))
        except ValueError as error:
            raise ConfigurationError(
                f"a request must have a JSON form, but this one has none: {describe(error)}", provider=PROVIDER
            ) from error

    async def _text(self, body: bytes, reply: _Reply) -> AsyncIterator[str]:
        payload = reply.payload
        call = partial(
            self.client.invoke_endpoint_with_response_stream, EndpointName=self.model, Body=body, **self._invocation
        )
        async with call_for_stream(lambda _: call(), "Body", as_bytes=self._as_bytes) as stream:
            frames = FrameDecoder(PROVIDER)
            async for chunk in stream.chunks:
                for part in _parts_of_bytes(frames, chunk) if stream.is_bytes else _parts_of_events(chunk):
                    for piece in _decoded(payload, partial(payload.feed, part)):
                        reply.characters += len(piece)
                        yield piece
                    if payload.complete:
                        break
                if payload.complete:
                    break
            if payload.complete:
                # what follows the end of a reply is of no interest, but a drained connection can be used again
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(_DRAIN_SECONDS):
                        async for _ in stream.chunks:
                            pass
            else:
                if payload.raw_stop_reason is None:
                    frames.close()
                for piece in _decoded(payload, payload.close):
                    reply.characters += len(piece)
                    yield piece
        reply.settle()


class _Reply:
    """What is known of a reply, and what has to be estimated."""

    def __init__(self, request: StreamRequest, payload: PayloadDecoder) -> None:
        self._request = request
        self.payload = payload
        self.characters = 0
        self.warnings: list[str] = []

    def settle(self) -> None:
        """The reply is whole: note what the container left out."""
        self._counted()
        if self.payload.raw_stop_reason is None:
            self.warnings.append("the container did not tell why the reply ended: finish_reason is other")
        for name, value in self.payload.usage.items():
            if whole_or_none(value) is None:
                self.warnings.append(f"{name} must be a whole number >= 0, but got {value!r:.100}: it is left out")
        if estimated := self._estimated():
            names = " and ".join(estimated)
            self.warnings.append(
                f"the container did not count {names}: estimated at {_CHARACTERS_PER_TOKEN} characters a token"
            )

    def usage(self) -> Usage:
        return Usage(**{**self._estimated(), **self._counted()})

    def raw_usage(self) -> dict[str, Any]:
        estimated = self._estimated()
        instance(f"raw_usage of {type(self.payload).__name__}", self.payload.raw_usage, Mapping)
        return {**self.payload.raw_usage, **({"estimated": True, **estimated} if estimated else {})}

    def _counted(self) -> dict[str, int]:
        """The figures that are some."""
        decoder = type(self.payload).__name__
        told: Any = self.payload.usage
        instance(f"usage of {decoder}", told, Mapping)
        for name in told:
            if name not in _FIGURES:
                raise ConfigurationError(
                    f"a figure of usage must be one of {', '.join(_FIGURES)}, but got {name!r} of {decoder}"
                )
        figures = {name: whole_or_none(value) for name, value in told.items()}
        return {name: figure for name, figure in figures.items() if figure is not None}

    def _estimated(self) -> dict[str, int]:
        counted = self._counted()
        sent = [self._request.system or "", *(message["content"] for message in self._request.messages)]
        characters = {"input_tokens": sum(map(len, sent)), "output_tokens": self.characters}
        return {
            name: math.ceil(count / _CHARACTERS_PER_TOKEN) for name, count in characters.items() if name not in counted
        }


def _parts_of_bytes(frames: FrameDecoder, data: bytes) -> Iterator[bytes]:
    for heading, payload in frames.feed(data):
        if heading.kind == "event":
            if heading.name == "PayloadPart":
                yield payload
            continue
        if heading.kind == "error":
            raise _reported(heading.name, heading.headers.get(":error-message") or "")
        try:
            details = from_json(payload)
        except ValueError:
            details = payload.decode(errors="replace")
        raise _reported(heading.name, details)


def _parts_of_events(events: list[Mapping[str, Any]]) -> Iterator[bytes]:
    for event in events:
        for name, details in event.items():
            if name == "PayloadPart":
                yield details.get("Bytes", b"")
            elif is_error_code(name):
                raise _reported(name, details)


def _reported(code: str, details: Any) -> Exception:
    if isinstance(details, Mapping) and details.get("ErrorCode"):
        # StreamBroken or ModelInvocationTimeExceeded
        details = {"message": f"{details['ErrorCode']}: {details.get('Message')}"}
    return error_of_code(code, details, provider=PROVIDER, streamed=True)


def _decoded(payload: PayloadDecoder, decode: Callable[[], Iterable[str]]) -> Iterator[str]:
    try:
        for piece in decode():
            if not isinstance(piece, str):
                raise ConfigurationError(f"{type(payload).__name__} must make pieces of str, but made {piece!r:.100}")
            yield piece
    except RxLoopError:
        raise
    except _FORMAT_ERRORS as error:
        raise MalformedResponseError(
            f"the payload does not have the container's format: {describe(error)}", provider=PROVIDER
        ) from error


def _of_container(error: Exception, response: Mapping[str, Any]) -> Exception:
    """
    The error that the container answered with, which SageMaker reports as its own 424.

    Source: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_runtime_InvokeEndpoint.html
    """
    original, metadata = response.get("OriginalStatusCode"), response.get("ResponseMetadata") or {}
    try:
        document = from_json(str(response.get("OriginalMessage") or ""))
    except ValueError:
        document = None
    if not isinstance(document, Mapping):
        document = {"error": (response.get("Error") or {}).get("Message")}
    classified = error_of_document(document, original if isinstance(original, int) else None)
    classified.status = metadata.get("HTTPStatusCode")
    classified.retry_after = retry_after(metadata.get("HTTPHeaders") or {})
    classified.__cause__ = error
    return classified


def _checked(client: Any, invocation: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The members of the call, as far as the SDK knows them."""
    instance("invocation", invocation, Mapping, type(None))
    operation = client.meta.service_model.operation_model(_OPERATION)
    known = [name for name in operation.input_shape.members if name not in _OWN_MEMBERS]
    for name in invocation or ():
        if name not in known:
            raise ConfigurationError(f"a member of invocation must be one of {', '.join(known)}, but got {name!r}")
    return invocation or {}
