"""What an operator sets: keys of an engine's extra config, each also a variable KVATLAS_..."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

MODES = ("discovery_only", "exact_prefix", "request_only")
# Of the server, whose variable has the same name.
SERVER_MODES = ("disabled", "materialize")
LOOKUP_TIMEOUT_MS_MAX = 60_000.0


class SettingsError(ValueError):
    """A key that is not known, or a value that does not fit; names it."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How engine adapters reach kvatlas, and what they may do."""

    # host:port or unix:PATH.
    address: str = "127.0.0.1:50051"
    # "discovery_only", "exact_prefix" or "request_only".
    mode: str = "discovery_only"
    # Thresholds of look-ups; None: the server's.
    min_prompt_tokens: int | None = None
    min_reuse_tokens: int | None = None
    min_similarity: float | None = None
    lookup_timeout_ms: float = 5.0
    # A file that gets one JSON line for each decision; None: none.
    audit_path: str | None = None
    # "memory", or a folder.
    kv_store: str = "memory"
    # A file with a bearer token; None: none is sent.
    token_file: str | None = None
    # A file of certificates to trust; None: no TLS.
    tls_ca: str | None = None

    @classmethod
    def load(
        cls,
        given: Mapping[str, Any],
        environ: Mapping[str, str] = os.environ,
        *,
        also: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> Settings:
        """A key that is given wins over its variable. SettingsError names what does not fit.

        `also` are keys that somebody else reads; `only` those that are read here, where not all.
        """
        unknown = sorted(set(given) - set(_READERS) - set(also))
        if unknown:
            known = ", ".join(_READERS)
            raise SettingsError(f"unknown settings: {', '.join(unknown)}; known are {known}")
        found: dict[str, Any] = {}
        for key, read in _READERS.items():
            if only is not None and key not in only:
                continue
            variable = f"KVATLAS_{key.upper()}"
            if given.get(key) is not None:
                found[key] = _read(key, given[key], read)
            elif environ.get(variable):
                found[key] = _read(variable, environ[variable], read)
        return cls(**found)

    @property
    def lookup_timeout_s(self) -> float:
        """As clients take it."""
        return self.lookup_timeout_ms / 1000


def _read(name: str, value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name}: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text")
    return value


def _mode(value: Any) -> str:
    # The server's own modes are spelled with hyphens.
    mode = str(value).replace("-", "_")
    if mode not in MODES:
        servers = f"; {mode} is a mode of the server" if mode in SERVER_MODES else ""
        raise ValueError(f"must be one of {', '.join(MODES)}{servers}")
    return mode


def _count(value: Any) -> int:
    number = _number(value)
    if not number.is_integer() or not 0 <= number < 2**32:
        raise ValueError("must be a whole number, 0 to 4294967295")
    return int(number)


def _share(value: Any) -> float:
    number = _number(value)
    if not 0 <= number <= 1:
        raise ValueError("must be 0 to 1")
    return number


def _milliseconds(value: Any) -> float:
    number = _number(value)
    if not 0 < number <= LOOKUP_TIMEOUT_MS_MAX:
        raise ValueError(f"must be more than 0 and at most {LOOKUP_TIMEOUT_MS_MAX:.0f}")
    return number


def _number(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("must be a number")
    return number


_READERS: dict[str, Callable[[Any], Any]] = {
    "address": _text,
    "mode": _mode,
    "min_prompt_tokens": _count,
    "min_reuse_tokens": _count,
    "min_similarity": _share,
    "lookup_timeout_ms": _milliseconds,
    "audit_path": _text,
    "kv_store": _text,
    "token_file": _text,
    "tls_ca": _text,
}
