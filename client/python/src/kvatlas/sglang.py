"""A FuzzyMatchProvider for SGLang's proposed `fuzzy_match` radix cache. Experimental.

That backend exists only as a pull request (sgl-project/sglang 31057). Its interface is written
down here as a protocol and dataclasses, so that this module is typed and tested without SGLang;
inside SGLang, its own classes are used.

What that backend loads it also commits to its radix tree. A span that is only verified would be
served to later requests as if it were exact. So by default this provider discovers and reports,
and never nominates; `materialize=True` is for experiments that accept that.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from kvatlas.answers import Found, Miss, Owner
from kvatlas.calls import Donor
from kvatlas.client import Client
from kvatlas.namespace import Namespace, tenant_key

# Donors whose slots are remembered, and nominations; the oldest goes first.
DONORS_MAX = 4096
# Calls that wait for the one thread that makes them.
QUEUE_MAX = 64
ANNOUNCE_EVERY_S = 10.0

_SGLANG_TYPES = "sglang.srt.mem_cache.fuzzy_match.fuzzy_match_provider"
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class QualitySignals:
    """What SGLang logs of a match. Here the similarity is the share of verified tokens."""

    cosine_similarity: float
    reuse_ratio: float
    confidence_tier: str
    passed_quality_gate: bool
    rejection_reason: str | None = None


@dataclasses.dataclass
class FuzzyMatchResult:
    """A donor's run of slots that continues the exact prefix."""

    cached_token_count: int
    cached_token_ids: list[int]
    prompt_token_count: int
    # The donor's pool slots, one for each token: a tensor, cut from the one that SGLang gave.
    kv_cache_indices: Any
    # Target position less donor position.
    position_offset: int
    # Where in the donor the run begins.
    cached_start_pos: int = 0
    segments: list[Any] | None = None
    layer_recompute_mask: list[bool] | None = None
    quality_signals: Any = None
    # The radix tree's node that keeps the donor's slots; SGLang pins it.
    donor_last_node_id: int | None = None
    match_entry: Any = None


class FuzzyMatchProvider(Protocol):
    """What FuzzyRadixCache calls, all on the scheduler's thread."""

    min_match_length: int

    def set_min_match_length(self, length: int) -> None:
        """Tokens that a match must have."""

    def match_on_prefix_miss(
        self,
        prompt_token_ids: Sequence[int],
        already_matched_len: int,
        request: Any = None,
        extra_key: str | None = None,
    ) -> Any | None:
        """A match for what lies beyond the exact prefix, or None."""

    def cache_on_request_finished(
        self,
        request: Any,
        token_ids: Sequence[int],
        kv_cache: Any,
        cache_start_pos: int,
        cache_end_pos: int,
        radix_tree: Any = None,
    ) -> bool:
        """Takes a finished request, whose slots are still live, as a future donor."""

    def on_donor_inserted(self, request: Any, donor_last_node_id: int) -> None:
        """Says which node of the tree keeps the donor."""

    def on_cache_reset(self) -> None:
        """Says that every slot is gone."""


@dataclasses.dataclass
class _Local:
    """A donor whose slots lie in this process's pool."""

    slots: Any
    node_id: int | None = None


class KvatlasFuzzyMatchProvider:
    """Asks kvatlas on a prefix miss, and registers finished requests as donors.

    `namespace` holds everything but the tenant, which is made of each request's `extra_key`.
    Requests that kvatlas cannot tell apart (images, embeddings, LoRA) are declined.
    """

    def __init__(
        self,
        config: Any,
        *,
        client: Client,
        namespace: Namespace,
        worker_id: str,
        dp_rank: int = 0,
        materialize: bool = False,
        on_decision: Callable[[str, Found | Miss], None] | None = None,
    ) -> None:
        """`config` is SGLang's; `on_decision` gets every look-up's request id and answer."""
        self.config = config
        self.min_match_length = int(config.fuzzy_min_match_length)
        self._client = client
        self._namespace = namespace
        self._owner = Owner(worker_id, dp_rank)
        self._materialize = materialize
        self._on_decision = on_decision
        self._result_type, self._signals_type = _engine_types()
        self._generation = _now_ms()
        self._announced_s = float("-inf")
        self._local: dict[str, _Local] = {}
        # Of recipients that have not finished: the lease, and what SGLang was given.
        self._nominated: dict[str, tuple[bytes, Any]] = {}
        self._calls = ThreadPoolExecutor(1, "kvatlas-sglang")
        self._room = threading.BoundedSemaphore(QUEUE_MAX)

    def set_min_match_length(self, length: int) -> None:
        """Tokens that a match must have."""
        self.min_match_length = length

    def match_on_prefix_miss(
        self,
        prompt_token_ids: Sequence[int],
        already_matched_len: int,
        request: Any = None,
        extra_key: str | None = None,
    ) -> Any | None:
        """A verified run that continues the exact prefix, or None."""
        self._announce_when_due()
        request_id = _request_id(request)
        answer = self._ask(prompt_token_ids, already_matched_len, request, extra_key)
        if self._on_decision is not None:
            self._on_decision(request_id, answer)
        if not self._materialize or isinstance(answer, Miss):
            return None
        match = self._match(prompt_token_ids, already_matched_len, answer)
        if match is not None and answer.lease is not None:
            _put(self._nominated, request_id, (answer.lease.id, match))
        return match

    def cache_on_request_finished(
        self,
        request: Any,
        token_ids: Sequence[int],
        kv_cache: Any,
        cache_start_pos: int,
        cache_end_pos: int,
        radix_tree: Any = None,  # noqa: ARG002
    ) -> bool:
        """Whether the request is registered, or will be in a moment; no call is waited for."""
        request_id = _request_id(request)
        self._report(request_id, request)
        tokens = np.asarray(token_ids)[:cache_end_pos]
        captured = len(tokens) - len(tokens) % max(self._namespace.block_size, 1)
        if not request_id or cache_start_pos != 0 or captured == 0 or _unsupported(request):
            return False
        namespace = self._of_tenant(getattr(request, "extra_key", None))
        if namespace is None or namespace.problem:
            return False
        donor = Donor(
            donor_id=request_id,
            namespace=namespace,
            owner=self._owner,
            owner_generation=self._generation,
            tokens=tokens,
            captured_tokens=captured,
            medium="device",
            store_id=f"sglang-{self._owner.worker_id}-{self._owner.dp_rank}",
            source_request_id=request_id,
        )
        self._announce_when_due()
        if not self._later(lambda: self._client.register_donor(donor)):
            return False
        # A copy: the request's is a view of what SGLang writes to again.
        _put(self._local, request_id, _Local(_copy(kv_cache[:captured])))
        return True

    def on_donor_inserted(self, request: Any, donor_last_node_id: int) -> None:
        """Says which node of the tree keeps the donor."""
        local = self._local.get(_request_id(request))
        if local is not None:
            local.node_id = donor_last_node_id

    def on_cache_reset(self) -> None:
        """A new generation: the donors of the one before go."""
        self._local.clear()
        self._generation = max(_now_ms(), self._generation + 1)
        self._announced_s = float("-inf")
        self._announce_when_due()

    def close(self) -> None:
        """Waits for the calls that are still to be made."""
        self._calls.shutdown()

    def _ask(
        self, token_ids: Sequence[int], exact: int, request: Any, extra_key: str | None
    ) -> Found | Miss:
        if declined := _unsupported(request):
            return Miss("unsupported_request", declined)
        key = extra_key if extra_key is not None else getattr(request, "extra_key", None)
        namespace = self._of_tenant(key)
        if namespace is None:
            return Miss("namespace_mismatch", "the extra key is blank")
        request_id = _request_id(request)
        return self._client.find_donor(
            np.asarray(token_ids),
            namespace,
            exact_prefix_tokens=exact,
            request_id=request_id,
            holder=self._owner.worker_id if self._materialize else "",
            readable_store_ids=(f"sglang-{self._owner.worker_id}-{self._owner.dp_rank}",),
        )

    def _match(self, token_ids: Sequence[int], exact: int, found: Found) -> Any | None:
        local = self._local.get(found.donor_id)
        start, count = found.donor_offset, found.reusable_prefix_tokens
        usable = found.outcome == "prefix" and found.lease is not None
        if not usable or found.owner != self._owner or found.owner_generation != self._generation:
            return None
        if local is None or local.node_id is None or count < self.min_match_length:
            return None
        if start == exact or start + count > len(local.slots):
            # At the same position the radix tree itself would have found what is still there.
            return None
        return self._result_type(
            cached_token_count=count,
            cached_token_ids=np.asarray(token_ids)[exact : exact + count].tolist(),
            prompt_token_count=len(token_ids),
            kv_cache_indices=local.slots[start : start + count],
            position_offset=exact - start,
            cached_start_pos=start,
            quality_signals=self._signals_type(
                cosine_similarity=found.similarity,
                reuse_ratio=found.reuse_ratio,
                confidence_tier=found.tier,
                passed_quality_gate=True,
            ),
            donor_last_node_id=local.node_id,
        )

    def _report(self, request_id: str, request: Any) -> None:
        """Says what became of a nomination, which ends its lease."""
        lease_id, match = self._nominated.pop(request_id, (b"", None))
        if match is None:
            return
        # The cache sets it when it takes the match.
        taken = getattr(request, "fuzzy_match_result", None) is match
        loaded = match.cached_token_count if taken else 0
        self._later(
            lambda: self._client.report_reuse(
                request_id,
                "request_only_reuse" if taken else "candidate_rejected",
                reason="" if taken else "allocation_failed",
                holder=self._owner.worker_id,
                lease_id=lease_id,
                tokens_loaded=loaded,
            )
        )

    def _of_tenant(self, extra_key: str | None) -> Namespace | None:
        try:
            return dataclasses.replace(self._namespace, tenant_key=tenant_key(extra_key))
        except ValueError:
            return None

    def _announce_when_due(self) -> None:
        now = time.monotonic()
        if now >= self._announced_s + ANNOUNCE_EVERY_S:
            self._announced_s = now
            owner, generation = self._owner, self._generation
            self._later(
                lambda: self._client.announce_owner(
                    owner.worker_id, generation, dp_rank=owner.dp_rank
                )
            )

    def _later(self, call: Callable[[], object]) -> bool:
        if not self._room.acquire(blocking=False):
            return False

        def run() -> None:
            try:
                call()
            except Exception as error:
                _log.warning("kvatlas: %s", error)
            finally:
                self._room.release()

        try:
            self._calls.submit(run)
        except RuntimeError:
            self._room.release()
            return False
        return True


def _put(table: dict[str, Any], request_id: str, value: Any) -> None:
    """As the newest; the oldest goes when there are too many."""
    table.pop(request_id, None)
    while len(table) >= DONORS_MAX:
        del table[next(iter(table))]
    table[request_id] = value


def _unsupported(request: Any) -> str | None:
    """Why kvatlas cannot tell this request's KV from another's, if so."""
    if getattr(request, "multimodal_inputs", None) is not None:
        return "the request has images or the like"
    if getattr(request, "input_embeds", None) is not None:
        return "the prompt is given as embeddings"
    if getattr(request, "lora_id", None) is not None:
        return "the request uses an adapter"
    return None


def _request_id(request: Any) -> str:
    return str(getattr(request, "rid", None) or "")


def _copy(slots: Any) -> Any:
    return slots.clone() if hasattr(slots, "clone") else slots.copy()


def _now_ms() -> int:
    return int(time.time() * 1000)


def _engine_types() -> tuple[Any, Any]:
    """SGLang's own classes where it has them, else those above."""
    try:
        module = importlib.import_module(_SGLANG_TYPES)
    except ImportError:
        return FuzzyMatchResult, QualitySignals
    return module.FuzzyMatchResult, module.QualitySignals
