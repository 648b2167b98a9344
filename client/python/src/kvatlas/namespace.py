"""What a donor serves a target under: every field of it must be equal."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from kvatlas.errors import InvalidRequest
from kvatlas.v1 import common_pb2

FIELD_BYTES_MAX = 512
BLOCK_SIZE_MAX = 4096
PARALLEL_SIZE_MAX = 65536
MULTIMODAL_HASHES_MAX = 64
MULTIMODAL_HASH_BYTES_MAX = 128
TENANT_KEY_PREFIX = "semblend:tenant:v1:"
TENANT_KEY_DIGITS = 32

_TENANT_KEY = re.compile(f"{TENANT_KEY_PREFIX}(?:none|[0-9a-f]{{{TENANT_KEY_DIGITS}}})")
_NAMESPACE_ID = re.compile("[0-9a-f]{64}")


def tenant_key(salt: str | None) -> str:
    """The tenant key of a cache salt, which itself never leaves this process.

    Raises ValueError for a blank salt: it would put everybody who forgot theirs into one tenant.
    """
    if salt is None:
        return f"{TENANT_KEY_PREFIX}none"
    if not salt.strip():
        raise ValueError("the cache salt is blank; give none at all, or one that names a tenant")
    digest = hashlib.sha256(salt.encode()).hexdigest()
    return TENANT_KEY_PREFIX + digest[:TENANT_KEY_DIGITS]


@dataclasses.dataclass(frozen=True)
class Namespace:
    """Every field but `multimodal_hashes` is required; where one does not apply, say "none".

    A look-up under an incomplete namespace is a miss, so that what is not known can stay empty.
    """

    model: str = ""
    model_revision: str = ""
    tokenizer: str = ""
    tokenizer_revision: str = ""
    # Settings that change token ids: special tokens, truncation side, and so on.
    tokenization: str = ""
    # Its name or digest.
    chat_template: str = ""
    dtype: str = ""
    kv_cache_dtype: str = ""
    # Tokens per KV block.
    block_size: int = 0
    kv_layout: str = ""
    attention_backend: str = ""
    tensor_parallel_size: int = 0
    pipeline_parallel_size: int = 0
    # LoRA identity.
    adapter: str = ""
    rope_scaling: str = ""
    # Feature hashes of the multimodal inputs, in prompt order.
    multimodal_hashes: tuple[str, ...] = ()
    # As `tenant_key` makes it.
    tenant_key: str = ""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Namespace:
        """Takes some or all of the fields by name. ValueError names what is no field."""
        unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"no field of a namespace: {', '.join(unknown)}")
        given = dict(fields)
        given["multimodal_hashes"] = tuple(given.get("multimodal_hashes", ()))
        return cls(**given)

    @functools.cached_property
    def problem(self) -> str | None:
        """The first field that is missing or out of range and what is wrong; never its value."""
        numbers = {
            "block_size": BLOCK_SIZE_MAX,
            "tensor_parallel_size": PARALLEL_SIZE_MAX,
            "pipeline_parallel_size": PARALLEL_SIZE_MAX,
        }
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in numbers:
                found = _number_problem(value, numbers[field.name])
            elif field.name == "multimodal_hashes":
                found = _hashes_problem(value)
            else:
                found = _text_problem(value, FIELD_BYTES_MAX)
            if found:
                return f"{field.name} {found}"
        # A raw salt put there by mistake must not leave this process.
        if not _TENANT_KEY.fullmatch(self.tenant_key):
            return f"tenant_key is not {TENANT_KEY_PREFIX}<32 hexadecimal digits or none>"
        return None

    def to_proto(self) -> common_pb2.Namespace:
        """The message that it is sent as."""
        names = (field.name for field in dataclasses.fields(self))
        return common_pb2.Namespace(**{name: getattr(self, name) for name in names})

    @functools.cached_property
    def selector(self) -> common_pb2.NamespaceSelector:
        """It as requests carry it; made once, so not to be changed."""
        return common_pb2.NamespaceSelector(namespace=self.to_proto())


def selector(namespace: Namespace | str) -> common_pb2.NamespaceSelector:
    """A namespace, in full or by its id, as requests carry it. Raises InvalidRequest."""
    if isinstance(namespace, Namespace):
        if namespace.problem:
            raise InvalidRequest(namespace.problem)
        return namespace.selector
    if not isinstance(namespace, str) or not _NAMESPACE_ID.fullmatch(namespace):
        raise InvalidRequest("a namespace id is 64 lower-case hexadecimal digits")
    return common_pb2.NamespaceSelector(namespace_id=namespace)


def _text_problem(text: Any, bytes_max: int) -> str | None:
    if not isinstance(text, str):
        return "is not text"
    if not text:
        return 'is empty; where it does not apply, say "none"'
    size = len(text.encode(errors="replace"))
    return f"holds {size} bytes, more than {bytes_max}" if size > bytes_max else None


def _number_problem(number: Any, most: int) -> str | None:
    if type(number) is int and 1 <= number <= most:
        return None
    return f"is not 1 to {most}"


def _hashes_problem(hashes: Any) -> str | None:
    if not isinstance(hashes, tuple) or len(hashes) > MULTIMODAL_HASHES_MAX:
        return f"is no tuple of at most {MULTIMODAL_HASHES_MAX}"
    for text in hashes:
        found = _text_problem(text, MULTIMODAL_HASH_BYTES_MAX)
        if found:
            return f"has one that {found}"
    return None
