"""Keeps calls and forks apart: a fork amid a call leaves a child in which grpcio aborts or hangs.

A fork waits a moment for the calls under way, and calls wait for the fork. A child that was forked
amid a call all the same is not let near grpcio: its calls fail at once, if grpcio has not ended it
before, within the fork.
"""

from __future__ import annotations

import os
import threading

from kvatlas.errors import KvatlasError

# Look-ups are far shorter; an upload may be longer.
FORK_WAIT_S_MAX = 1.0


class _Gate:
    def __init__(self, usable: bool = True) -> None:
        self.usable = usable
        self.changed = threading.Condition()
        self.calls = 0
        self.forks = 0
        # Whether no call was under way when the last fork began.
        self.quiet = True

    def no_fork(self) -> bool:
        return self.forks == 0

    def no_call(self) -> bool:
        return self.calls == 0


_gate = _Gate()


def begin_call(timeout_s: float) -> None:
    """Waits while a fork is under way. Each is to be followed by one `end_call`."""
    gate = _gate
    if not gate.usable:
        raise KvatlasError("internal", "this process was forked while a call was under way")
    with gate.changed:
        if gate.forks and not gate.changed.wait_for(gate.no_fork, timeout_s):
            raise KvatlasError("deadline_exceeded", "a fork was under way")
        gate.calls += 1


def end_call() -> None:
    """The call has ended, from whatever thread."""
    gate = _gate
    with gate.changed:
        gate.calls -= 1
        if gate.forks:
            gate.changed.notify_all()


def _before_fork() -> None:
    gate = _gate
    with gate.changed:
        gate.forks += 1
        gate.quiet = gate.changed.wait_for(gate.no_call, FORK_WAIT_S_MAX)


def _after_fork_in_parent() -> None:
    gate = _gate
    with gate.changed:
        gate.forks -= 1
        gate.changed.notify_all()


def _after_fork_in_child() -> None:
    # Another thread of the parent may have held the lock, and its calls never end here.
    global _gate  # noqa: PLW0603
    _gate = _Gate(usable=_gate.usable and _gate.quiet)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
