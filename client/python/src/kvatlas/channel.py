"""Connections: one per process and server, never used across a fork."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import threading
from typing import Any

import grpc

from kvatlas import forks

ADDRESS_DEFAULT = "127.0.0.1:50051"
HTTPS = "https://"
# An answer may be as long as a page of the largest records.
ANSWER_BYTES_MAX = 64 << 20

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # A restarted server is found again within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Finds a peer that vanished without closing the connection.
    # A server that hangs, too: until then, a call whose bytes it does not take goes on past its
    # deadline.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A look-up after a pause does not pay for a new connection.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
    # A look-up has no time for a second try, and the breaker counts the first.
    ("grpc.enable_retries", 0),
    # Engines run where http_proxy is set for downloads.
    ("grpc.enable_http_proxy", 0),
    # Connections, and how long to wait before the next try, are this channel's own.
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a server is: `host:port`, `http://host:port`, `https://host:port` or `unix:PATH`."""

    address: str
    # A file of certificates to trust; None: no TLS, but where the address says https, with the
    # roots that grpcio brings along.
    tls_ca: str | None = None

    def __post_init__(self) -> None:
        _grpc_name(self.address)


class Connection:
    """A channel and its calls, which take and give bytes, shared by the clients of one process."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self._unary: dict[str, Any] = {}

    def unary(self, path: str) -> Any:
        """The call as grpcio has it: to be called, or with .future()."""
        try:
            return self._unary[path]
        except KeyError:
            return self._unary.setdefault(path, self.channel.unary_unary(path))

    def upload(self, path: str) -> Any:
        """A call that takes a stream of messages."""
        return self.channel.stream_unary(path)


# What a process inherited stays here for ever: closing it would write to its parent's sockets.
_shared: dict[tuple[int, Target], tuple[Connection, set[int]]] = {}
_lock = threading.Lock()


def acquire(target: Target, user: object) -> Connection:
    """This process's connection to the server, made if need be. Twice for a user counts once."""
    with _lock:
        key = (os.getpid(), target)
        if key not in _shared:
            _shared[key] = (Connection(_channel(target)), set())
            forks.watch()
        connection, users = _shared[key]
        users.add(id(user))
        return connection


def release(target: Target, user: object) -> None:
    """Closes it when nobody else in this process uses it."""
    with _lock:
        key = (os.getpid(), target)
        connection, users = _shared.get(key, (None, set()))
        users.discard(id(user))
        if connection is None or users:
            return
        del _shared[key]
    connection.channel.close()


def _renew_lock() -> None:
    # Another thread of the parent may have held it.
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _channel(target: Target) -> grpc.Channel:
    name = _grpc_name(target.address)
    options = list(_OPTIONS)
    if name.startswith("unix:"):
        # Otherwise the path is sent as the authority, which servers refuse.
        options.append(("grpc.default_authority", "localhost"))
    if target.tls_ca is None and not target.address.startswith(HTTPS):
        return grpc.insecure_channel(name, options)
    trusted = pathlib.Path(target.tls_ca).read_bytes() if target.tls_ca else None
    return grpc.secure_channel(name, grpc.ssl_channel_credentials(trusted), options)


def _grpc_name(address: str) -> str:
    if address.startswith("unix:"):
        path = address[len("unix:") :]
        path = path[2:] if path.startswith("//") else path
        if path:
            return f"unix:{path}"
    else:
        scheme = next((one for one in ("http://", HTTPS) if address.startswith(one)), "")
        authority = address[len(scheme) :]
        host, _, port = authority.removesuffix("/").rpartition(":")
        plain = host and not set(host) & set("/@?# ")
        if plain and port.isascii() and port.isdigit() and int(port) <= 65535:
            return f"{host}:{port}"
    raise ValueError(f"{address!r} is not host:port, https://host:port or unix:PATH")
