"""Where requests are posted: the URL read into host, port, TLS and request head, and why one cannot connect.

It opens no connection.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests are posted, with the request head up to the content length."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    head: bytes


def endpoint(url: str, api_key: str = "", chat: bool = False) -> Endpoint:
    """The completions or chat endpoint below `url`, which may have a path. Raises ValueError naming what is wrong."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"cannot use the URL {url!r}: write http://host:port or https://host:port")
    if not api_key.isprintable() or not (parts.netloc + parts.path).isprintable() or " " in parts.path:
        raise ValueError("the URL or the API key holds characters that no HTTP header can carry")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    lines = [
        f"POST {parts.path.rstrip('/')}/v1/{'chat/completions' if chat else 'completions'} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
    ]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    head = "\r\n".join([*lines, "Content-Length: "]).encode()
    return Endpoint(parts.hostname, parts.port or (443 if tls else 80), tls, head)


def connect_error(error: OSError) -> str:
    """A short plain reason why no connection came about."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, ssl.SSLError):
        return f"TLS error: {error.reason}"
    return f"cannot connect: {error.strerror or error}"
