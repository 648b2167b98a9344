"""kvatlas inside vLLM: `kv_connector_module_path` "kvatlas.vllm", `kv_connector` "KvatlasConnector".

Importing it imports vLLM.
"""

from kvatlas.vllm.connector import KvatlasConnector

__all__ = ["KvatlasConnector"]
