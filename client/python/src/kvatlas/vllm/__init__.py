"""kvatlas inside vLLM: kv_connector_module_path `kvatlas.vllm`, kv_connector `KvatlasConnector`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvatlas.vllm.connector import KvatlasConnector

__all__ = ["KvatlasConnector"]


def __getattr__(name: str) -> Any:
    """The connector's module imports vLLM, so only who asks for the connector needs it."""
    if name == "KvatlasConnector":
        from kvatlas.vllm.connector import KvatlasConnector  # noqa: PLC0415

        return KvatlasConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
