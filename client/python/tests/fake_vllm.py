"""Stands in for the few names that the connector takes from vLLM, where vLLM is not installed."""

from __future__ import annotations

import enum
import sys
import types
from typing import Any


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    pass


class KVConnectorWorkerMetadata:
    pass


class KVConnectorHandshakeMetadata:
    pass


class SupportsHMA:
    pass


class KVConnectorBase_V1:
    """As in vLLM 0.32, cut down to what the connector inherits."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        self._connector_metadata: Any = None
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._role = role

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._connector_metadata = metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None


def install() -> None:
    """Makes `import vllm.distributed...` find these; a real vLLM goes first."""
    try:
        import vllm  # noqa: F401, PLC0415
    except ImportError:
        path = "vllm.distributed.kv_transfer.kv_connector.v1.base"
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            sys.modules[name] = types.ModuleType(name)
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], sys.modules[name])
        for one in (
            KVConnectorRole,
            KVConnectorMetadata,
            KVConnectorWorkerMetadata,
            KVConnectorHandshakeMetadata,
            SupportsHMA,
            KVConnectorBase_V1,
        ):
            setattr(sys.modules[path], one.__name__, one)


install()
