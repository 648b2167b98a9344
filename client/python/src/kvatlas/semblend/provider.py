"""Answers semblend-vllm-connector from kvatlas. Nothing here raises into the engine: whatever goes
wrong is a miss, and its reason stands in the connector's audit as `miss_rejection_reason`."""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvatlas import Client, Donor, Found, Gates, Miss, Namespace, Owner
from kvatlas.semblend.identity import ID_BYTES_MAX, identity
from kvatlas.semblend.namespaces import OwnNamespaces, StatedNamespaces
from kvatlas.semblend.registrar import Registrar
from kvatlas.semblend.runs import SeenRuns
from kvatlas.settings import Settings

log = logging.getLogger(__name__)

NAMESPACE_VARIABLE = "KVATLAS_NAMESPACE"
# What is ours to say; the rest is the connector's.
SETTINGS = ("address", "lookup_timeout_ms", "token_file", "tls_ca", "min_reuse_tokens")
TEXT_BYTES_MAX = 4 << 20
DISCOVERY_MODE = "discovery_only"
SPAN_MODE = "semantic_span_experimental"
# The modes in which nothing but a full prefill, or an exact load, ever fills what is captured.
EXACT_MODES = (DISCOVERY_MODE, "exact_prefix")


class KvatlasSemanticProvider:
    """Looks donors up in kvatlas and registers the engine's finished prompts there."""

    def __init__(self, config: Any) -> None:
        """Takes the connector's configuration. Settings that do not fit are an error, here only."""
        settings = Settings.load({}, only=SETTINGS)
        stated = os.environ.get(NAMESPACE_VARIABLE)
        self._types = importlib.import_module("semblend_vllm_connector.types")
        self._namespaces = (
            StatedNamespaces(config, read_fields(stated)) if stated else OwnNamespaces()
        )
        self._client = Client(
            settings.address,
            lookup_timeout_s=settings.lookup_timeout_s,
            token_file=settings.token_file,
            tls_ca=settings.tls_ca,
            # It is asked on the engine's own thread.
            punctual=True,
        )
        self._mode = str(getattr(config.mode, "value", config.mode))
        self._gates = gates(config, settings, self._mode)
        self._medium, self._store_id = store(config, self._mode)
        self._registrar = Registrar(self._client)
        self._runs = SeenRuns()
        self._last_miss: dict[str, Any] | None = None

    def lookup(self, request: Any) -> Any | None:
        """Whose prompt this one can borrow from; None is a miss, see `last_lookup_diagnostics`."""
        try:
            answer = self._look_up(request)
            result = None if isinstance(answer, Miss) else self._result(answer, request.token_ids)
        except Exception as error:
            answer, result = Miss("provider_error", type(error).__name__), None
        self._last_miss = (
            {"rejection_reason": answer.reason, "detail": answer.detail or None}
            if isinstance(answer, Miss)
            else None
        )
        return result

    def last_lookup_diagnostics(self) -> dict[str, Any] | None:
        """Why the last look-up was a miss; None if it was not."""
        return self._last_miss

    def register_donor(self, donor: Any) -> None:
        """Offers a finished prompt. Returns at once; it is registered beside the engine."""
        try:
            self._register(donor)
        except Exception as error:
            log.warning("donor not registered: %s", type(error).__name__)

    def clear_donors(self) -> None:
        """Removes this engine's donors, after those that still wait to be registered."""
        self._registrar.clear()

    def span_run_possible(
        self, token_ids: Any, namespace: str | None, start: int, length: int
    ) -> bool | None:
        """Whether a donor can hold this run of the prompt. False is sure; None: it is not known.

        Answered without a call, of what this engine registered; so never where engines share.
        """
        try:
            run = token_ids[start : start + length]
            if len(run) < length:
                return False
            return None if self._namespaces.shared else self._runs.can_hold(namespace or "", run)
        except Exception:
            return None

    def _look_up(self, request: Any) -> Found | Miss:
        namespace = self._namespaces.of(request)
        if isinstance(namespace, Miss):
            return namespace
        return self._client.find_donor(
            np.asarray(request.token_ids, np.uint32),
            namespace,
            exact_prefix_tokens=request.already_computed_tokens,
            request_id=identity().global_id(request.request_id),
            gates=self._gates,
            accept_spans=self._mode == SPAN_MODE,
            text=_text(request.prompt_text),
        )

    def _result(self, found: Found, token_ids: Any) -> Any:
        """The answer in the connector's words.

        Always "discovery only" as a whole: in its exact mode the connector loads without a look at
        whether the donor is still there. The segments are for its span mode, which looks.
        """
        donor_id = identity().local_id(found.donor_id)
        first = found.spans[0]
        head = first.length if first.donor_start == first.target_start == 0 else 0
        segment = self._types.SemanticSegment
        return self._types.SemanticLookupResult(
            donor_id=donor_id,
            similarity=found.similarity,
            reusable_token_count=sum(span.length for span in found.spans),
            materialization_kind=self._types.MaterializationKind.DISCOVERY_ONLY,
            # As many of the donor's as are known, being equal: those from its start on.
            donor_token_ids=list(token_ids[:head]) or None,
            segments=[
                segment(donor_id, span.donor_start, span.target_start, span.length)
                for span in found.spans
            ],
            quality_signals={
                "reuse_ratio": found.reuse_ratio,
                "confidence_tier": found.tier,
                "facts_differ": found.facts_differ,
            },
            metadata={"timings_us": dict(found.timings), "mode": found.mode},
            reason=f"kvatlas_{found.outcome}",
        )

    def _register(self, donor: Any) -> None:
        donor_id = identity().global_id(donor.donor_id)
        namespace = self._namespaces.of(donor)
        if not donor.has_captured_kv or not donor_id or isinstance(namespace, Miss):
            return
        tokens = np.asarray(donor.token_ids, np.uint32)
        # Before it can be found, so that no is never said of what can be.
        self._runs.add(donor.namespace, tokens)
        self._registrar.put(self._donor(donor_id, namespace, tokens, donor.prompt_text))

    def _donor(
        self, donor_id: str, namespace: Namespace, tokens: npt.NDArray[np.uint32], text: str | None
    ) -> Donor:
        captured = len(tokens) // namespace.block_size * namespace.block_size
        return Donor(
            donor_id=donor_id,
            namespace=namespace,
            owner=Owner(identity().worker_id),
            owner_generation=identity().generation,
            tokens=tokens,
            captured_tokens=captured,
            exact_tokens=captured if self._mode in EXACT_MODES else 0,
            medium=self._medium,
            store_id=self._store_id,
            source_request_id=donor_id,
            text=_text(text),
        )


def read_fields(path_or_json: str) -> Mapping[str, Any]:
    """A namespace's fields, from a JSON file or from JSON itself. ValueError."""
    inline = path_or_json.lstrip().startswith("{")
    fields = json.loads(path_or_json if inline else Path(path_or_json).read_text())
    if not isinstance(fields, dict):
        raise ValueError(f"{NAMESPACE_VARIABLE} holds no JSON object")
    return fields


def gates(config: Any, settings: Settings, mode: str) -> Gates:
    """The connector's thresholds; where it has none, those of KVATLAS_..., else the server's."""
    least = settings.min_reuse_tokens
    return Gates(
        min_prompt_tokens=config.min_prompt_tokens,
        min_reuse_tokens=config.min_semantic_span if mode == SPAN_MODE else least,
        min_similarity=config.min_similarity,
        min_reuse_ratio=config.min_reuse_ratio,
        exact_prefix_skip_ratio=config.skip_when_exact_prefix_ratio_at_least,
    )


def store(config: Any, mode: str) -> tuple[str, str]:
    """The medium that donors' KV lies in, and a name for where."""
    if mode == DISCOVERY_MODE:
        # Nothing is captured: there is what the engine's own cache still holds.
        return "device", _cut(f"semblend:{identity().name}")
    if config.kv_storage_backend == "memory":
        return "host", _cut(f"semblend:{identity().name}")
    return "disk", _cut(f"semblend:{socket.gethostname()}:{config.kv_storage_path}")


def _cut(name: str) -> str:
    return name.encode()[:ID_BYTES_MAX].decode(errors="ignore")


def _text(text: str | None) -> str:
    """A text as it may be sent; one that is too long is left out."""
    return text if text and len(text.encode(errors="replace")) <= TEXT_BYTES_MAX else ""
