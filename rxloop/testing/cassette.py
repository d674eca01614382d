"""Cassettes: recorded HTTP in vcrpy's YAML form, read without patching anything and written without secrets."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from rxloop.errors import ConfigurationError
from rxloop.testing.files import read_text
from rxloop.testing.frames import frame, rewritten

__all__ = ("ID_KINDS", "Interaction", "read_cassette", "vcr_config", "without_credentials")

_REQUEST_HEADERS = ("anthropic-beta", "content-type", "x-amz-target")
_RESPONSE_HEADERS = (
    "content-encoding",
    "content-type",
    "retry-after",
    "retry-after-ms",
    "x-amzn-errortype",
)
_SECRETS = frozenset(
    (
        "access_token", "api_key", "assertion", "auth", "auth_token", "authorization", "authorization_token",
        "aws_secret_access_key", "bearer_token", "client_secret", "credential", "id_token", "passwd", "password",
        "private_key", "refresh_token", "secret", "secret_access_key", "secret_key", "session_token", "token",
        "user_id", "x_api_key",
    )
)  # fmt: skip
"""Names of secrets in a body, in lower case and with underscores."""

_SECRET_QUERY = _SECRETS | {"code", "key", "sig", "signature", "subscription_key"}
_SECRET_QUERY_PREFIXES = ("x_amz_", "x_goog_")
_ADDRESSES = ("server_url", "uri", "url")
_STRING_FIELD = re.compile(r'"(?P<name>[\w-]{1,40})"(?P<colon>\s*:\s*)"(?P<value>(?!")[^"\\]*(?:\\.[^"\\]*)*)"')
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
ID_KINDS = "msg|req|toolu|srvtoolu|mcptoolu|container|file|msgbatch"
"""What the provider's own identifiers begin with, as alternatives of a pattern."""

# what is a digest already stays: vcrpy filters a request more than once
_ID = re.compile(
    rf"\b(?P<kind>{ID_KINDS})_(?!x{{4}})(?P<rest>[A-Za-z0-9]{{16,}})"
    r"|\b(?!00000000-0000-4000-8000-)(?P<uuid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
)
_ACCOUNT_PATH = re.compile(r"/(projects|accounts|organizations)/[^/?]+")
_NO_ACCOUNT = "0" * 12
_ACCOUNT_FIELDS = ("account_id", "bucket_owner")
# in an address the colons are encoded
_ARN = re.compile(
    r"(?P<arn>\barn(?::|%3A)aws[\w-]*(?:(?:%3A|:)[\w-]*){2}(?:%3A|:))\d{12}\b"
    r"(?P<who>(?<=:(?:iam|sts)::\d{12}):[^\s\"'\\]+)?",
    re.IGNORECASE,
)
# in JSON the letter of an escape may be before a word
_START = r"(?:(?<![\w-])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4}))"
_KEY = re.compile(
    rf"{_START}(?:(?:AKIA|ASIA)[A-Z0-9]{{16}}(?![A-Za-z0-9_])|sk-[A-Za-z0-9_-]{{16,}}|AIza[A-Za-z0-9_-]{{35,}})"
)
"""Access keys of AWS and API keys."""

_BEARER = re.compile(
    rf"(?P<scheme>(?i:\bauthorization[\\\"']*\s*[:=]\s*[\\\"']*bearer) +|{_START}Bearer +)"
    r"(?!(?:tokens?|auth\w*|realm)\b)[\w.~+/=-]+"
    rf"|{_START}(?P<lower>(?i:bearer) +)[\w.~+/=-]{{16,}}"
)
"""A token in words: in prose that writes it small, only what is too long for a word."""

_SIGNED = re.compile(
    r"(?P<name>x-amz-(?:security-token|credential|signature)(?:\s*[:=]\s*|\\?[\"']\s*[:=]\s*\\?[\"']))[^\s\"'\\&,;<>]+"
    r"|(?P<signature>\bSignature=)[0-9a-f]{32,}",
    re.IGNORECASE,
)
"""Parts of a signed request of AWS."""

_CANONICAL = re.compile(r"(The Canonical String for this request)(?:[^\"\\]|\\.)*")
"""With it AWS quotes the headers of a request whose signature does not fit, the session's token among them."""

_AUTHORIZATION = re.compile(r'(?i)"(?:[^"\\]|\\.)*authorization header(?:[^"\\]|\\.)*"')
"""So it quotes a header that it cannot read."""

_CREDENTIALS_HOST = re.compile(
    r"169\.254\.\d+\.\d+|fd00:ec2::[\da-f]+|[\w-]+\.signin\.aws\.amazon\.com"
    r"|(?:sts|oidc|portal\.sso)(?:[.-][\w.-]+)?\.amazonaws\.com(?:\.cn)?"
)
"""Where AWS hands out credentials."""

_GZIP = b"\x1f\x8b"
_FRAMED = b"\0"
"""An event stream of AWS begins so: the length of its first frame."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """
    One recorded request and its response.

    Args:
        index: its place in the cassette, from 0.
        method: the HTTP method.
        uri: the request's address.
        request_headers: by lower-case name.
        request_body: as it was sent, uncompressed.
        status: the response's HTTP status.
        headers: the response's headers by lower-case name, without those that speak of the transfer.
        body: the response's body, uncompressed.
    """

    index: int
    method: str
    uri: str
    request_headers: Mapping[str, str]
    request_body: bytes
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def host(self) -> str:
        """The host that was asked."""
        return urlsplit(self.uri).hostname or ""

    @property
    def path(self) -> str:
        """The path of the address, without its query."""
        return urlsplit(self.uri).path


def read_cassette(path: str | os.PathLike[str]) -> list[Interaction]:
    """
    The interactions of a cassette in vcrpy's format, version 1, in the order in which they were recorded.

    Bodies may be text, bytes or base64, compressed or not, whatever the headers say of it.

    Args:
        path: a YAML file, or vcrpy's JSON form of it.

    Raises:
        ConfigurationError: the file cannot be read or is not such a cassette, or vcrpy is not installed.

    Source: https://vcrpy.readthedocs.io/en/latest/advanced.html
    """
    shown = os.fspath(path)
    text = read_text(path, "a cassette")
    try:
        from vcr.serialize import deserialize
        from vcr.serializers import jsonserializer, yamlserializer
    except ImportError as error:
        raise ConfigurationError('reading a cassette needs vcrpy: pip install "rxloop[test]"') from error
    serializer = _Lenient(jsonserializer if text.lstrip().startswith("{") else yamlserializer, shown)
    try:
        requests, responses, *_ = deserialize(text, serializer)
        recorded = [_interaction(*item) for item in zip(itertools.count(), requests, responses, strict=False)]
    except ConfigurationError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, KeyError):
            reason = f"an interaction has no {error}"
        raise ConfigurationError(f"{shown} is not a cassette in vcrpy's format: {reason}") from error
    if not recorded:
        raise ConfigurationError(f"{shown} has no interactions: record it again, or give another cassette")
    return recorded


def vcr_config(*, base_url: str | None = None) -> dict[str, Any]:
    """
    Options for ``vcr.VCR(...)``, ``use_cassette(...)`` or pytest-recording that record without secrets.

    Of the headers only those are written that a replay needs, so no credential, cookie or account is among them.
    Credentials in an address, and accounts and projects in its path, are replaced, and so are the strings of a JSON
    body whose names are those of secrets, such as ``authorization_token``, ``api_key`` or ``user_id``. The provider's
    own identifiers become digests of themselves, the same in a reply and in the request that answers it. Accounts and
    users in AWS's ARNs are replaced, in event streams too, and its requests for credentials are not recorded. API keys
    and bearer tokens that a text quotes, as errors do, are replaced as well. Nothing depends on the machine, so that
    recording the same again makes no difference.

    Args:
        base_url: written in place of the scheme and host that were asked, for recordings from a server of your own.
    """
    target = None if base_url is None else urlsplit(base_url)

    def before_record_request(request: Any) -> Any:
        address = urlsplit(_public(request.uri))
        if _CREDENTIALS_HOST.fullmatch(address.hostname or ""):
            return None
        if target is not None:
            address = address._replace(scheme=target.scheme, netloc=target.netloc.rpartition("@")[2])
        path = _ACCOUNT_PATH.sub(r"/\1/recorded", address.path)
        address = address._replace(path=_ARN.sub(_public_arn, path))
        request = type(request)(request.method, request.uri, _sent(request.body), request.headers)
        request.uri = address.geturl()
        request.headers = {
            name.lower(): _first(value) for name, value in request.headers.items() if name.lower() in _REQUEST_HEADERS
        }
        body = _scrubbed(request.body)
        if "x-www-form-urlencoded" in request.headers.get("content-type", ""):
            # as a request for a token is
            body = _public_query(body.decode("latin-1")).encode("latin-1") if isinstance(body, bytes) else body
        request.body = body
        return request

    def before_record_response(response: dict[str, Any]) -> dict[str, Any]:
        headers = response["headers"]
        response["headers"] = {
            name.lower(): value for name, value in headers.items() if name.lower() in _RESPONSE_HEADERS
        }
        response["body"] = {**response["body"], "string": _scrubbed(response["body"].get("string"))}
        return response

    return {
        "before_record_request": before_record_request,
        "before_record_response": before_record_response,
        "decode_compressed_response": True,
    }


class _Lenient:
    """vcrpy's serializer, with what recorders of other projects write made into what vcrpy's own writes."""

    def __init__(self, serializer: Any, shown: str) -> None:
        self._serializer = serializer
        self._shown = shown

    def deserialize(self, text: str) -> Any:
        data = self._serializer.deserialize(text)
        interactions = data.get("interactions") if isinstance(data, Mapping) else None
        if not isinstance(interactions, list):
            raise ConfigurationError(
                f"{self._shown} is not a cassette in vcrpy's format: it must be a mapping with a list of interactions"
            )
        version = data.get("version", 1)
        if version != 1:
            raise ConfigurationError(f"{self._shown} must be a cassette of version 1, but it is of version {version!r}")
        for item in interactions:
            if isinstance(item, Mapping):
                _plain_request(item["request"])
                _plain_response(item["response"])
        return data


def _plain_request(request: dict[str, Any]) -> None:
    parsed = request.pop("parsed_body", None)
    body = request.get("body")
    if parsed is not None:
        body = json.dumps(parsed, ensure_ascii=False)
    elif isinstance(body, Mapping):
        body = _mapping_body(body)
    # vcrpy's own reader knows these names only
    kept = {name: request.get(name) for name in ("method", "uri", "headers")}
    request.clear()
    request.update(kept, headers=kept["headers"] or {}, body=body)


def _plain_response(response: dict[str, Any]) -> None:
    parsed = response.pop("parsed_body", None)
    if parsed is not None:
        response["body"] = {"string": json.dumps(parsed, ensure_ascii=False)}
    elif "content" in response:
        # vcrpy's former form of httpx responses
        response["body"] = {"string": response.pop("content")}
    body = response.get("body")
    response["body"] = {"string": _mapping_body(body) if isinstance(body, Mapping) else body}
    if "status_code" in response:
        response["status"] = {"code": response.pop("status_code")}


def _mapping_body(body: Mapping[str, Any]) -> Any:
    encoded = body.get("base64_string")
    if encoded is not None:
        return base64.b64decode(encoded)
    if "string" in body or not body:
        return body.get("string")
    return json.dumps(body, ensure_ascii=False)


def _interaction(index: int, request: Any, response: Mapping[str, Any]) -> Interaction:
    body = _sent(request.body)
    headers = {str(name).lower(): _first(value) for name, value in (response.get("headers") or {}).items()}
    content = _uncompressed(response["body"]["string"] or b"", headers)
    for name in ("content-length", "transfer-encoding"):
        headers.pop(name, None)
    return Interaction(
        index=index,
        method=str(request.method),
        uri=str(request.uri),
        request_headers={str(name).lower(): _first(value) for name, value in request.headers.items()},
        request_body=_uncompressed(body or b"", {}),
        status=int(response["status"]["code"]),
        headers=headers,
        body=content,
    )


def _uncompressed(body: bytes, headers: dict[str, str]) -> bytes:
    """The body as it is meant. Recorders undo a compression and leave its header, or the other way round."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if body.startswith(_GZIP):
        decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        body = decompressor.decompress(body) + decompressor.flush()
    elif encoding == "deflate":
        for wbits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
            try:
                body = zlib.decompress(body, wbits)
            except zlib.error:
                continue
            break
    elif encoding not in ("", "gzip", "identity") and not _is_text(body):
        # whoever serves the body knows more encodings
        return body
    headers.pop("content-encoding", None)
    return body


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _first(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_first(item) for item in value)
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _sent(body: Any) -> Any:
    """A request's body as it goes out: some transports are given a JSON value, a file or its parts."""
    if isinstance(body, (Mapping, list)):
        return json.dumps(body, ensure_ascii=False, default=str).encode()
    if hasattr(body, "read"):
        return body.read()
    if isinstance(body, Iterator):
        return b"".join(part.encode() if isinstance(part, str) else bytes(part) for part in body)
    return bytes(body) if isinstance(body, bytearray) else body


def _scrubbed(body: Any) -> Any:
    if isinstance(body, bytes):
        if body.startswith(_FRAMED):
            return rewritten(body, _scrubbed_frame)
        try:
            return _scrubbed(body.decode()).encode()
        except UnicodeDecodeError:
            return body
    if not isinstance(body, str):
        return body
    body = without_credentials(body)
    return _ID.sub(_digest, _STRING_FIELD.sub(_public_field, body))


def _scrubbed_frame(headers: bytes, payload: bytes) -> bytes | None:
    """A frame without accounts; its identifiers stay, since text may have been cut in the middle of one."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    public = without_credentials(text)
    return None if public == text else frame(headers, public.encode())


def without_credentials(text: str) -> str:
    """
    JSON without keys, tokens, and what AWS says of accounts and credentials. To do it again makes no difference.

    Args:
        text: JSON, or lines of it; strings are looked for as JSON writes them.
    """
    public = _ARN.sub(_public_arn, _SIGNED.sub(_public_token, _BEARER.sub(_public_token, _KEY.sub("recorded", text))))
    return _AUTHORIZATION.sub('"recorded: the Authorization header"', _CANONICAL.sub(r"\1: recorded", public))


def _public_token(found: re.Match[str]) -> str:
    return f"{found[str(found.lastgroup)]}recorded"


def _public_arn(found: re.Match[str]) -> str:
    return f"{found['arn']}{_NO_ACCOUNT}{':recorded' if found['who'] else ''}"


def _public_field(found: re.Match[str]) -> str:
    """A string of a JSON body, without a secret; all but the string stays as it was written."""
    name = found["name"]
    if _plain_name(name) in _SECRETS:
        return f'"{name}"{found["colon"]}"recorded"'
    if _plain_name(name) in _ACCOUNT_FIELDS and re.fullmatch(r"\d{12}", found["value"]):
        return f'"{name}"{found["colon"]}"{_NO_ACCOUNT}"'
    if name not in _ADDRESSES:
        return found[0]
    try:
        address = json.loads(f'"{found["value"]}"')
        public = _public(address)
    except ValueError:
        return found[0]
    return found[0] if public == address else f'"{name}"{found["colon"]}{json.dumps(public, ensure_ascii=False)}'


def _public(address: str) -> str:
    """An address without what opens it."""
    parts = urlsplit(address)
    public = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=_public_query(parts.query))
    return address if public == parts else public.geturl()


def _public_query(query: str) -> str:
    return "&".join(
        f"{name}=recorded" if equals and value and _is_secret_query(name) else f"{name}{equals}{value}"
        for name, equals, value in (part.partition("=") for part in query.split("&"))
    )


def _is_secret_query(name: str) -> bool:
    plain = _plain_name(unquote_plus(name))
    return plain in _SECRET_QUERY or plain.startswith(_SECRET_QUERY_PREFIXES)


def _plain_name(name: str) -> str:
    return _CAMEL.sub("_", name).replace("-", "_").lower()


def _digest(found: re.Match[str]) -> str:
    digest = hashlib.sha256((found["rest"] or found["uuid"]).encode()).hexdigest()
    return f"{found['kind']}_xxxx{digest[:20]}" if found["kind"] else f"00000000-0000-4000-8000-{digest[:12]}"
