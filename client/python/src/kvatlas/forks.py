"""Keeps calls and forks apart: a fork amid a call leaves a child in which grpcio aborts or hangs.

A fork waits a moment for the calls under way, then cancels those that go on, and calls wait for the
fork. A child that was forked amid a call all the same is not let near grpcio: its calls fail at
once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from kvatlas.errors import KvatlasError

# Look-ups are far shorter. A call that may take longer must be one that can be cancelled.
FORK_WAIT_S_MAX = 1.0


# Where it is switched off, nothing of grpcio works in a child, which would wait for ever.
_SUPPORTED = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() not in (
    "0",
    "f",
    "false",
    "n",
    "no",
    "off",
)


class _Gate:
    def __init__(self, unusable: str = "") -> None:
        # Why grpcio is not to be called in this process; empty where it may be.
        self.unusable = unusable
        self.changed = threading.Condition()
        self.calls = 0
        self.cancels: set[Callable[[], Any]] = set()
        self.forks = 0
        # Whether no call was under way when the last fork began.
        self.quiet = True

    def no_fork(self) -> bool:
        return self.forks == 0

    def no_call(self) -> bool:
        return self.calls == 0


_gate = _Gate()
_registered = threading.Lock()


def watch() -> None:
    """To be called once there is a channel: grpcio has registered its own hooks by then, so that
    ours come first, while the calls can still end."""
    if hasattr(os, "register_at_fork") and _registered.acquire(blocking=False):
        os.register_at_fork(
            before=_before_fork,
            after_in_parent=_after_fork_in_parent,
            after_in_child=_after_fork_in_child,
        )


def begin_call(timeout_s: float) -> None:
    """Waits while a fork is under way. Each is to be followed by one `end_call`."""
    gate = _gate
    if gate.unusable:
        raise KvatlasError("internal", gate.unusable)
    with gate.changed:
        if gate.forks and not gate.changed.wait_for(gate.no_fork, timeout_s):
            raise KvatlasError("deadline_exceeded", "a fork was under way")
        gate.calls += 1


def may_cancel(cancel: Callable[[], Any]) -> None:
    """A fork that has waited long enough ends the call so."""
    gate = _gate
    with gate.changed:
        gate.cancels.add(cancel)


def end_call(cancel: Callable[[], Any] | None = None) -> None:
    """The call has ended, from whatever thread."""
    gate = _gate
    with gate.changed:
        gate.calls -= 1
        if cancel is not None:
            gate.cancels.discard(cancel)
        if gate.forks:
            gate.changed.notify_all()


def _before_fork() -> None:
    gate = _gate
    with gate.changed:
        gate.forks += 1
        gate.quiet = gate.changed.wait_for(gate.no_call, FORK_WAIT_S_MAX)
        cancels = list(gate.cancels)
    if gate.quiet:
        return
    # Without the lock, which the calls need to end.
    for cancel in cancels:
        cancel()
    with gate.changed:
        gate.quiet = gate.changed.wait_for(gate.no_call, FORK_WAIT_S_MAX)


def _after_fork_in_parent() -> None:
    gate = _gate
    with gate.changed:
        gate.forks -= 1
        gate.changed.notify_all()


def _after_fork_in_child() -> None:
    # Another thread of the parent may have held the lock, and its calls never end here.
    global _gate  # noqa: PLW0603
    unusable = _gate.unusable
    if not _SUPPORTED:
        unusable = "this process was forked, and GRPC_ENABLE_FORK_SUPPORT is off"
    elif not _gate.quiet:
        unusable = "this process was forked while a call was under way"
    _gate = _Gate(unusable)
