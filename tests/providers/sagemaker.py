"""The wire format of SageMaker's InvokeEndpointWithResponseStream, spoken by a scripted local server.

The service passes on what the model's container writes, in parts whose borders mean nothing. What common containers
write is here too, each function giving the container's writes in order.

Sources: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_runtime_ResponseStream.html,
https://docs.djl.ai/master/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html and
https://huggingface.github.io/text-generation-inference/
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.providers.eventstream import EventStreamServer, HeaderValue, Part, event
from tests.providers.http import split_every

__all__ = [
    "SageMakerServer",
    "json_line",
    "llama",
    "lmi",
    "lmi_error",
    "openai",
    "openai_error",
    "payload",
    "sse",
    "tgi",
    "tgi_error",
    "unknown_event",
]

_USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


def payload(writes: Sequence[bytes], part_size: int | None = None) -> list[bytes]:
    """The frames of a payload: a part for each write, or parts of so many bytes, wherever that cuts."""
    parts = writes if part_size is None else split_every(b"".join(writes), part_size)
    return [event("PayloadPart", part, "application/octet-stream") for part in parts]


def unknown_event(kind: str = "FutureEvent", headers: Mapping[str, HeaderValue] | None = None) -> bytes:
    """A frame with an event of a type not known yet."""
    return event(kind, b'{"Future":[1]}', headers=headers)


def sse(value: Any, space: bool = True, name: str | None = None) -> bytes:
    """One server-sent event; `space` is what follows the colon."""
    data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    named = "" if name is None else f"event:{' ' * space}{name}\n"
    return f"{named}data:{' ' * space}{data}\n\n".encode()


def json_line(value: Any) -> bytes:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def openai(
    *pieces: str,
    reasoning: Sequence[str] = (),
    finish_reason: str | None = "stop",
    usage: Mapping[str, Any] | None = _USAGE,
    done: bool = True,
    lines: bool = False,
    model: str = "model-test",
) -> list[bytes]:
    """What a container writes that is compatible with OpenAI's chat completions, such as vLLM's.

    The finish reason is in a chunk of its own, and the usage in one more after it; None leaves either out. `done`
    is the mark at the end. `lines` are lines of JSON without that mark, as LMI writes them.
    """

    def write(choices: Sequence[Any], **more: Any) -> bytes:
        known = {"id": "chatcmpl-test", "object": "chat.completion.chunk", "created": 1767225600, "model": model}
        value = {**known, "choices": choices, **more}
        return json_line(value) if lines else sse(value)

    def choice(delta: Mapping[str, Any], reason: str | None = None) -> list[Any]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]

    writes = [write(choice({"role": "assistant", "content": ""}))]
    writes += [write(choice({"reasoning_content": piece})) for piece in reasoning]
    writes += [write(choice({"content": piece})) for piece in pieces]
    if finish_reason is not None:
        writes.append(write(choice({}, finish_reason)))
    if usage is not None:
        total = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
        writes.append(write([], usage={"total_tokens": total, **usage}))
    return [*writes, sse("[DONE]")] if done and not lines else writes


def openai_error(message: str = "scripted failure", code: int = 500, kind: str = "InternalServerError") -> list[bytes]:
    """What such a container writes when it fails inside a reply."""
    failed = {"object": "error", "message": message, "type": kind, "param": None, "code": code}
    return [sse({"error": failed}), sse("[DONE]")]


def tgi(
    *pieces: str,
    finish_reason: str | None = "eos_token",
    generated_tokens: int | None = None,
    special: str | None = "</s>",
    **details: Any,
) -> list[bytes]:
    """What Text Generation Inference writes.

    The last token ends it: `special`, or the last piece if that is None. Without a finish reason the last
    one has no details, and `details` are more of them.
    """
    tokens = [(piece, False) for piece in pieces] + ([] if special is None else [(special, True)])
    writes = []
    for index, (piece, is_special) in enumerate(tokens, 1):
        value: dict[str, Any] = {
            "index": index,
            "token": {"id": 100 + index, "text": piece, "logprob": -0.25, "special": is_special},
            "generated_text": None,
            "details": None,
        }
        if index == len(tokens):
            value["generated_text"] = "".join(pieces)
            if finish_reason is not None:
                count = len(tokens) if generated_tokens is None else generated_tokens
                ending = {"finish_reason": finish_reason, "generated_tokens": count, "seed": None}
                value["details"] = {**ending, **details}
        writes.append(sse(value, space=False))
    return writes


def tgi_error(
    message: str = "Request failed during generation: scripted failure", kind: str = "generation"
) -> list[bytes]:
    """What Text Generation Inference writes when it fails inside a reply."""
    return [sse({"error": message, "error_type": kind}, space=False)]


def lmi(
    *pieces: str,
    finish_reason: str | None = "eos_token",
    generated_tokens: int | None = None,
    server_sent: bool = False,
    **details: Any,
) -> list[bytes]:
    """What Large Model Inference (DJL) writes: lines of JSON, or server-sent events.

    The last piece ends it. Without a finish reason it has no details, as where the request did not ask for them;
    `details` are more of them.
    """
    writes = []
    for index, piece in enumerate(pieces, 1):
        value: dict[str, Any] = {"token": {"id": 100 + index, "text": piece, "log_prob": -0.25}}
        if index == len(pieces):
            value["generated_text"] = "".join(pieces)
            if finish_reason is not None:
                count = len(pieces) if generated_tokens is None else generated_tokens
                value["details"] = {"finish_reason": finish_reason, "generated_tokens": count, **details}
        writes.append(sse(value, space=False) if server_sent else json_line(value))
    return writes


def lmi_error(server_sent: bool = False) -> list[bytes]:
    """What Large Model Inference writes when it fails inside a reply."""
    value = {
        "token": {"id": -1, "text": "", "log_prob": -1, "special_token": True},
        "generated_text": "",
        "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
    }
    return [sse(value, space=False) if server_sent else json_line(value)]


def llama(*pieces: str, stop_reason: str | None = "stop", prompt_token_count: int | None = 10) -> list[bytes]:
    """What a container of a Llama model writes: lines of JSON, the prompt counted in the first, the end in the last."""
    return [
        json_line(
            {
                "generation": piece,
                "prompt_token_count": prompt_token_count if index == 1 else None,
                "generation_token_count": index,
                "stop_reason": stop_reason if index == len(pieces) else None,
            }
        )
        for index, piece in enumerate(pieces, 1)
    ]


class SageMakerServer(EventStreamServer):
    """A local server that scripts replies of `InvokeEndpointWithResponseStream`."""

    service = "sagemaker-runtime"
    path = re.compile(r"/endpoints/([^/]+)/invocations-response-stream")
    message_key = "Message"
    kinds = {  # noqa: RUF012 - typed in the base class
        400: "ValidationError",
        401: "UnauthorizedException",
        403: "AccessDeniedException",
        404: "ResourceNotFoundException",
        408: "RequestTimeout",
        424: "ModelError",
        429: "ThrottlingException",
        500: "InternalFailure",
        503: "ServiceUnavailable",
        530: "InternalDependencyException",
    }

    def reply(
        self,
        writes: Sequence[bytes],
        part_size: int | None = None,
        before: Sequence[Part] = (),
        after: Sequence[Part] = (),
        content_type: str | None = "text/event-stream",
        cut: int | None = None,
        chunk_size: int | None = None,
        headers: Mapping[str, str] | None = None,
        prelude: Sequence[Part] = (),
    ) -> None:
        """Script a streamed reply of what a container writes.

        `part_size` makes every part of the payload that long, which has nothing to do with the HTTP chunks.
        `before` and `after` are frames and actions around its own. `content_type` is the container's.
        """
        named = {"x-amzn-invoked-production-variant": "AllTraffic"}
        if content_type is not None:
            named["x-amzn-sagemaker-content-type"] = content_type
        parts = [*before, *payload(writes, part_size), *after]
        self.reply_frames(*parts, cut=cut, chunk_size=chunk_size, headers={**named, **(headers or {})}, prelude=prelude)

    def model_error(
        self,
        original_status: int,
        original_message: str = '{"error":"scripted failure"}',
        code: str | None = None,
        retry_after: float | str | None = None,
    ) -> None:
        """Script the answer to a request that the container answered with an error status."""
        side = "client" if original_status < 500 else "server"
        self.fail(
            424,
            "ModelError",
            f'Received {side} error ({original_status}) from primary with message "{original_message}".',
            retry_after,
            OriginalStatusCode=original_status,
            OriginalMessage=original_message,
            LogStreamArn="arn:aws:logs:us-east-1:123456789012:log-group:/aws/sagemaker/Endpoints/my-endpoint",
            ErrorCode=code or f"{side.upper()}_ERROR_FROM_MODEL",
        )

    def model_stream_error(
        self, code: str = "StreamBroken", message: str = "scripted failure", after: Sequence[Part] = ()
    ) -> None:
        """Script a reply that the container broke, after these frames; `code` may be ModelInvocationTimeExceeded."""
        self.exception_inside("ModelStreamError", message, after, ErrorCode=code)
