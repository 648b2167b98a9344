"""The namespace of what the connector hands over: a model, a cache salt, and a digest.

The digest is over model, tokenizer, block size, dtype, salt and adapter. A namespace needs more, so
one of two things holds. `OwnNamespaces`: donors are this engine's own; one process has one
configuration, so what is not handed over is named by the process. `StatedNamespaces`: the operator
says what the engine is, so that engines can share donors; what he says is checked against the
digest, and a doubt is a miss.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from kvatlas import Miss, Namespace, tenant_key
from kvatlas.semblend.identity import identity

# Namespaces kept made: tenants times adapters.
CACHED_MAX = 1024
NO_ADAPTER = "none"


class OwnNamespaces:
    """Namespaces that no other process shares, nor this one after a restart."""

    shared = False

    def of(self, handed: Any) -> Namespace | Miss:
        """Of a look-up or a donor, as the connector hands it over."""
        return _own(handed.model_id, handed.namespace, handed.cache_salt, identity().name)


class StatedNamespaces:
    """Namespaces that the operator states, with what belongs to a request put in."""

    shared = True

    def __init__(self, config: Any, fields: Mapping[str, Any]) -> None:
        """`fields` by the names of the namespace; ValueError names what is none."""
        self._stated = Namespace.from_dict(fields)
        self._config = config
        self._of = functools.lru_cache(CACHED_MAX)(self._make)

    def of(self, handed: Any) -> Namespace | Miss:
        """Of a look-up or a donor, as the connector hands it over."""
        return self._of(handed.model_id, handed.namespace, handed.cache_salt)

    def _make(self, model: str, digest: str, salt: str | None) -> Namespace | Miss:
        tenant = _tenant(salt)
        if isinstance(tenant, Miss):
            return tenant
        stated = self._stated
        if stated.model not in ("", model):
            return _mismatch("the engine's model is not the stated one")
        if stated.adapter not in ("", NO_ADAPTER):
            return _mismatch("an adapter cannot be stated, the requests have it")
        namespace = dataclasses.replace(stated, model=model, adapter=NO_ADAPTER, tenant_key=tenant)
        if digest not in self._digests(namespace, salt):
            return _mismatch("the request has an adapter, or the engine is not what was stated")
        return namespace

    def _digests(self, namespace: Namespace, salt: str | None) -> set[str]:
        """What the connector makes of a request without an adapter in the engine as stated.

        Its own function makes them here too, so that another release's rule is followed.
        """
        rule = importlib.import_module("semblend_vllm_connector.namespace").namespace_for_request
        request = SimpleNamespace(cache_salt=salt, lora_request=None)
        cache_config = SimpleNamespace(block_size=namespace.block_size)
        return {
            rule(
                self._config,
                SimpleNamespace(
                    cache_config=cache_config,
                    model_config=SimpleNamespace(
                        model=namespace.model, tokenizer=namespace.tokenizer, dtype=dtype
                    ),
                ),
                request,
            )
            # As torch spells it, and as people do.
            for dtype in (f"torch.{namespace.dtype}", namespace.dtype)
        }


@functools.lru_cache(CACHED_MAX)
def _own(model: str, digest: str, salt: str | None, engine: str) -> Namespace | Miss:
    tenant = _tenant(salt)
    if isinstance(tenant, Miss):
        return tenant
    return Namespace(
        model=model,
        model_revision=engine,
        tokenizer=engine,
        tokenizer_revision=engine,
        tokenization=engine,
        chat_template=engine,
        dtype=engine,
        kv_cache_dtype=engine,
        # The connector does not tell its own, and cuts what it gets to whole blocks.
        block_size=1,
        kv_layout=engine,
        attention_backend=engine,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        adapter=digest,
        rope_scaling=engine,
        tenant_key=tenant,
    )


def _tenant(salt: str | None) -> str | Miss:
    try:
        return tenant_key(salt)
    except ValueError:
        return _mismatch("the cache salt is blank")


def _mismatch(detail: str) -> Miss:
    return Miss("namespace_mismatch", detail)
