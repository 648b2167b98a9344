"""A circuit breaker: stops asking a server that does not answer, and tries it now and then."""

from __future__ import annotations

import threading

FAILURES_MAX = 5
# Half a second, so that even a server whose first connection takes longer than a look-up may is
# asked again, over the connection then made, well within two.
OPEN_S = 0.5


class Breaker:
    """Opens after some failures in a row; while open, lets one call through per `open_s`.

    Time comes in as an argument: seconds of any clock that does not go back.
    """

    def __init__(self, failures_max: int = FAILURES_MAX, open_s: float = OPEN_S) -> None:
        if failures_max < 1 or not open_s > 0:
            raise ValueError("failures_max is at least 1 and open_s more than 0")
        self.failures_max = failures_max
        self.open_s = open_s
        self._lock = threading.Lock()
        self._failures = 0
        self._closed_from = 0.0

    def fresh(self) -> Breaker:
        """A closed one with the same limits: what a forked child goes on with."""
        return Breaker(self.failures_max, self.open_s)

    @property
    def open(self) -> bool:
        """Whether a call that is allowed is a probe."""
        return self._failures >= self.failures_max

    def allows(self, now_s: float) -> bool:
        """Whether to make a call now. While open, the first to ask after a pause is the probe."""
        if not self.open:
            return True
        with self._lock:
            if not self.open:
                return True
            if now_s < self._closed_from:
                return False
            self._closed_from = now_s + self.open_s
            return True

    def succeeded(self) -> None:
        """The server answered, whatever it said."""
        if self._failures:
            with self._lock:
                self._failures = 0

    def failed(self, now_s: float) -> None:
        """The server was not there, or not in time."""
        with self._lock:
            self._failures += 1
            if self.open:
                self._closed_from = now_s + self.open_s
