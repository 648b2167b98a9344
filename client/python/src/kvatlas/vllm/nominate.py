"""Asks the service about a request, off the scheduler's thread, and checks what it may be used
for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvatlas.answers import Found, Lease
from kvatlas.calls import Gates
from kvatlas.client import Client
from kvatlas.kvstore.record import TokenIds
from kvatlas.namespace import Namespace, tenant_key
from kvatlas.settings import Settings
from kvatlas.vllm.audit import Audit
from kvatlas.vllm.decide import Declined, Limits, Usable, usable
from kvatlas.vllm.namespace import adapter_identity, namespace_digest

# Short, so that a lease whose answer came too late for anybody to know of it soon ends by itself.
LEASE_TTL_MS = 5000
# With less left than this a lease is renewed before anything is promised on it.
LEASE_LEFT_MIN_MS = 2500
LEASE_EXPIRED = Declined("donor_stale", "the lease is expired")
# Tokens; some 50 us.
PACKED_AT_ONCE = 1024


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a look-up needs of a request. The list is the engine's, which does not change it."""

    request_id: str
    prompt: Sequence[int] = dataclasses.field(repr=False)
    cache_salt: str | None = dataclasses.field(repr=False)
    lora_request: Any


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A request as the service and the store know it."""

    tokens: TokenIds = dataclasses.field(repr=False)
    namespace: Namespace
    # Digest of the namespace.
    digest: str


@dataclasses.dataclass(frozen=True)
class Nomination:
    """A donor whose lease was valid at `validated_s`."""

    found: Found
    lease: Lease
    usable: Usable
    validated_s: float


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of a look-up: a nomination, or why there is none."""

    prepared: Prepared | None
    result: Nomination | Declined


class Nominator:
    """Stateless but for what it was made with, so that any thread may use it."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        limits: Limits,
        audit: Audit,
        stores: tuple[str, ...],
    ) -> None:
        self._client = client
        self._settings = settings
        self._limits = limits
        self._audit = audit
        self._stores = stores
        self._gates = Gates(
            min_prompt_tokens=settings.min_prompt_tokens,
            min_reuse_tokens=settings.min_reuse_tokens,
            min_similarity=settings.min_similarity,
        )

    def look_up(self, asked: Asked, engine: Namespace, holder: str) -> Answer:
        """Never raises. A lease that the answer does not use is released."""
        prepared = _prepared(asked, engine)
        if isinstance(prepared, Declined):
            self._audit.record(
                "lookup", request_id=asked.request_id, outcome="miss", **_told(prepared)
            )
            return Answer(None, prepared)
        begun_s = time.monotonic()
        exact_only = self._settings.mode == "exact_prefix"
        found = self._client.find_donor(
            prepared.tokens,
            prepared.namespace,
            request_id=asked.request_id,
            holder=holder,
            readable_store_ids=self._stores,
            gates=self._gates,
            minimum_tier="exact" if exact_only else "",
            lease_ttl_ms=LEASE_TTL_MS if holder else 0,
        )
        elapsed_ms = round((time.monotonic() - begun_s) * 1000, 3)
        if not isinstance(found, Found):
            declined = Declined(found.reason, found.detail)
            self._audit.record(
                "lookup",
                request_id=asked.request_id,
                outcome="miss",
                prompt_tokens=len(prepared.tokens),
                elapsed_ms=elapsed_ms,
                **_told(declined),
            )
            return Answer(prepared, declined)
        self._record_hit(asked, prepared, found, elapsed_ms)
        return Answer(prepared, self._nomination(prepared, found, holder))

    def prepare(self, asked: Asked, engine: Namespace) -> Answer:
        """Asks for nothing: for engines whose prompts become donors, and that load nothing."""
        prepared = _prepared(asked, engine)
        if isinstance(prepared, Declined):
            return Answer(None, prepared)
        return Answer(prepared, Declined("recompute_policy", "the engine's role is to produce"))

    def check(self, nomination: Nomination, holder: str) -> Nomination | Declined:
        """The same with its lease validated just now, or why it is none any more."""
        lease_id = nomination.lease.id
        state, left_ms = self._client.validate(lease_id, holder)
        if state == "valid" and left_ms < LEASE_LEFT_MIN_MS:
            state = self._client.renew(lease_id, holder, LEASE_TTL_MS)
        # The service forgets those that have run out, sooner or later.
        if state in ("expired", "unknown"):
            return LEASE_EXPIRED
        if state != "valid":
            self._client.release(lease_id, holder)
            return Declined("donor_stale", f"the lease is {state}")
        return dataclasses.replace(nomination, validated_s=time.monotonic())

    def _nomination(self, prepared: Prepared, found: Found, holder: str) -> Nomination | Declined:
        mode = self._settings.mode
        if mode == "discovery_only":
            return Declined("recompute_policy", "discovery only")
        chosen = usable(found, len(prepared.tokens), self._limits, mode)
        if found.lease is None:
            return chosen if isinstance(chosen, Declined) else Declined("recompute_policy")
        if isinstance(chosen, Declined):
            self._client.release(found.lease.id, holder)
            return chosen
        return self.check(Nomination(found, found.lease, chosen, 0.0), holder)

    def _record_hit(
        self, asked: Asked, prepared: Prepared, found: Found, elapsed_ms: float
    ) -> None:
        self._audit.record(
            "lookup",
            request_id=asked.request_id,
            outcome=found.outcome,
            reason=found.reason,
            donor_id=found.donor_id,
            tier=found.tier,
            prompt_tokens=len(prepared.tokens),
            reusable_prefix_tokens=found.reusable_prefix_tokens,
            verified_tokens=sum(span.length for span in found.spans),
            spans=len(found.spans),
            similarity=round(found.similarity, 4),
            reuse_ratio=round(found.reuse_ratio, 4),
            leased=found.lease is not None,
            lease_refusal=found.lease_refusal,
            facts_differ=found.facts_differ,
            elapsed_ms=elapsed_ms,
        )


def give_back(client: Client, answer: Answer, holder: str) -> None:
    """Ends the lease of an answer that nobody waits for any more."""
    if isinstance(answer.result, Nomination):
        client.release(answer.result.lease.id, holder)


def _prepared(asked: Asked, engine: Namespace) -> Prepared | Declined:
    adapter = adapter_identity(asked.lora_request)
    if not adapter:
        return Declined("unsupported_request", "an adapter whose files are not known")
    try:
        tenant = tenant_key(asked.cache_salt)
    except ValueError:
        return Declined("namespace_mismatch", "a blank cache salt")
    try:
        tokens = _packed(asked.prompt)
    except (OverflowError, TypeError, ValueError):
        return Declined("unsupported_request", "token ids beyond 32 bits")
    namespace = dataclasses.replace(engine, adapter=adapter, tenant_key=tenant)
    if namespace.problem:
        return Declined("namespace_mismatch", namespace.problem)
    return Prepared(tokens, namespace, namespace_digest(namespace))


def _packed(prompt: Sequence[int]) -> TokenIds:
    """In pieces, between which the scheduler's thread gets its turn: a list of ids becomes an array
    only under the interpreter's lock."""
    tokens = np.empty(len(prompt), np.uint32)
    for start in range(0, len(prompt), PACKED_AT_ONCE):
        tokens[start : start + PACKED_AT_ONCE] = prompt[start : start + PACKED_AT_ONCE]
        time.sleep(0)
    return tokens


def _told(declined: Declined) -> dict[str, str]:
    return {"reason": declined.reason, "detail": declined.detail}
