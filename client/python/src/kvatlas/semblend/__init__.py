"""The provider for semblend-vllm-connector: vLLM's look-ups and donors go to kvatlas.

    "provider_module": "kvatlas.semblend", "provider_class": "KvatlasSemanticProvider"

The server's address is in KVATLAS_ADDRESS. Needs nothing of vLLM or of the connector to import.
"""

from kvatlas.semblend.provider import KvatlasSemanticProvider

__all__ = ["KvatlasSemanticProvider"]
