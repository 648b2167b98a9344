"""The connector in the scheduler: what is asked, advertised, loaded and captured, by request.

Everything here runs on the scheduler's thread and waits for nothing: the service is called by other
threads. A lease is held from the look-up's answer until the load has ended or the request is
declined, and is given back on every way out.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvatlas.client import Client
from kvatlas.namespace import Namespace, tenant_key
from kvatlas.settings import Settings
from kvatlas.vllm.audit import Audit
from kvatlas.vllm.control import Control
from kvatlas.vllm.decide import Declined, Limits, advertised, capturable, unsupported
from kvatlas.vllm.donors import OwnDonors
from kvatlas.vllm.lookups import Lookups, Ticket
from kvatlas.vllm.messages import Load, LoadResult, StepPlan, WorkerReport
from kvatlas.vllm.nominate import (
    LEASE_EXPIRED,
    Answer,
    Asked,
    Nomination,
    Nominator,
    Prepared,
    give_back,
)

MIN_PROMPT_TOKENS_DEFAULT = 512
# A nomination that waited longer for its blocks is validated again before it is advertised.
VALIDATED_S_MAX = 0.1
# On top of the calls' own deadlines, before the scheduler stops waiting for a look-up's thread.
LOOKUP_GRACE_S = 0.05
# What one work of such a thread calls at most: a lease that turns out to have run out is validated
# and released, and the search and the validation of its lease follow.
LOOKUP_CALLS_MAX = 4
# A preempted request may load again; not for ever.
LOOKUPS_MAX = 3
ENDED_MAX = 256
# How a request ends that has run to its end.
COMPLETE = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")

_log = logging.getLogger("kvatlas.vllm")


@dataclasses.dataclass(frozen=True)
class Engine:
    """What the scheduler's side knows of its engine."""

    # Workers that each hold a share of every block.
    workers: int
    limits: Limits
    # Roles that vLLM's kv_role gives.
    loads: bool
    captures: bool


@dataclasses.dataclass(frozen=True)
class Parts:
    """What the scheduler's side works with."""

    client: Client
    audit: Audit
    lookups: Lookups
    nominator: Nominator
    control: Control
    donors: OwnDonors


@dataclasses.dataclass
class _Tracked:
    """A request, from its arrival until it has finished."""

    asked: Asked
    preemptions: int
    ticket: Ticket[Answer] | None = None
    # When to stop waiting for the ticket, by time.monotonic().
    give_up_s: float = 0.0
    lookups: int = 0
    prepared: Prepared | None = None
    nomination: Nomination | None = None
    # Told to the scheduler: tokens in the local cache, and up to where a load would go on.
    local: int = 0
    advertised: int = 0
    # The load that is going on.
    load: Load | None = None
    loaded_tokens: int = 0
    # Its KV is not what a full prefill would have given.
    inexact: bool = False


class SchedulerSide:
    """Follows every request through vLLM's scheduler."""

    def __init__(self, engine: Engine, settings: Settings, parts: Parts) -> None:
        self._engine = engine
        self._settings = settings
        self._client = parts.client
        self._audit = parts.audit
        self._lookups = parts.lookups
        self._nominator = parts.nominator
        self._control = parts.control
        self._donors = parts.donors
        # Otherwise it only discovers, and holds no lease.
        self._materializes = settings.mode != "discovery_only"
        self._namespace: Namespace | None = None
        self._unsupported = "the workers have not said yet what they are"
        minimum = settings.min_prompt_tokens
        self._min_prompt_tokens = MIN_PROMPT_TOKENS_DEFAULT if minimum is None else minimum
        self._tracked: dict[str, _Tracked] = {}
        self._plan = StepPlan()
        self._load_results: dict[str, LoadResult] = {}
        # Requests that ended before their look-up did, and how much of each could be a donor; in
        # the mode discovery_only, where nothing waits for look-ups.
        self._ended: collections.deque[tuple[_Tracked, int]] = collections.deque(maxlen=ENDED_MAX)

    # What vLLM calls, in its order.

    def workers_are(self, namespace: Namespace, unsupported: str) -> None:
        """What the workers said of themselves once their caches were there."""
        self._namespace = namespace
        self._unsupported = unsupported
        whole = dataclasses.replace(namespace, adapter="none", tenant_key=tenant_key(None))
        if whole.problem:
            _log.warning("every look-up will be a miss (namespace_mismatch): %s", whole.problem)
        if unsupported:
            _log.warning("every request will be declined (unsupported_request): %s", unsupported)
        self._audit.record(
            "engine",
            mode=self._settings.mode,
            namespace=dataclasses.asdict(namespace),
            problem=whole.problem,
            unsupported=unsupported,
        )

    def on_new_request(self, request: Any) -> None:
        """Asks about the request, if it is of a kind that can be served."""
        if request.request_id not in self._tracked:
            self._begin(request)

    def matched(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """Tokens that can be loaded beyond the local ones; None: ask again at the next step.

        Loads run beside the schedule. One that fails is then known before the model has run, so
        that nothing was computed from it.
        """
        tracked = self._tracked.get(request.request_id) or self._begin(request)
        if not self._materializes:
            if local_tokens > tracked.local:
                tracked.local = local_tokens
                # The look-up went out before it was known, so that its hit is of the whole prompt.
                self._audit.record(
                    "local", request_id=request.request_id, local_tokens=local_tokens
                )
            return 0, False
        if getattr(request, "num_preemptions", 0) > tracked.preemptions:
            self._preempted(tracked, request)
        if tracked.ticket is not None and not self._take(tracked):
            return None, False
        nomination = tracked.nomination
        if nomination is None or tracked.load is not None:
            return 0, False
        tokens = advertised(nomination.usable.end, local_tokens, self._engine.limits)
        if isinstance(tokens, Declined):
            self._decline(tracked, tokens)
            return 0, False
        if time.monotonic() - nomination.validated_s > VALIDATED_S_MAX:
            self._validate_again(tracked, nomination, self._donors.holder)
            return (None if tracked.ticket is not None else 0), False
        tracked.local, tracked.advertised = local_tokens, tokens
        return tokens, True

    def allocated(self, request: Any, block_ids: Sequence[int], external_tokens: int) -> None:
        """The scheduler has given the request its blocks; a load is planned if it counts on one."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.nomination is None or tracked.load is not None:
            return
        if external_tokens == 0:
            self._decline(tracked, Declined("recompute_policy", "the engine loads nothing"))
            return
        assert tracked.prepared is not None, "nominations come with what they were made for"
        nomination, prepared = tracked.nomination, tracked.prepared
        end = tracked.local + external_tokens
        block_size = self._engine.limits.block_size
        tracked.load = Load(
            request_id=request.request_id,
            donor_id=nomination.found.donor_id,
            lease_id=nomination.lease.id,
            holder=self._donors.holder,
            block_ids=tuple(block_ids[tracked.local // block_size : end // block_size]),
            target_start=tracked.local,
            tokens=prepared.tokens[:end],
            donor_offset=nomination.usable.donor_offset,
            namespace=prepared.digest,
        )
        self._plan.loads.append(tracked.load)

    def step_plan(self, scheduled_tokens: int) -> StepPlan:
        """What the workers are to do in this step, in which the model computes so many tokens."""
        plan, self._plan = self._plan, StepPlan()
        if scheduled_tokens == 0:
            plan.idle = True
            plan.looking = any(one.ticket is not None for one in self._tracked.values())
        plan.drops.extend(self._donors.refused())
        self._observe_ended()
        return plan

    def workers_report(self, report: WorkerReport) -> None:
        """What the workers have done since."""
        self._donors.gone(report.evicted)
        for request_id, result in report.loads.items():
            before = self._load_results.pop(request_id, None)
            merged = result if before is None else before.merged(result)
            if merged.workers < self._engine.workers:
                self._load_results[request_id] = merged
            else:
                self._loaded(request_id, merged)
        self._plan.drops.extend(self._donors.saved(report.saves, self._engine.workers))

    def finished(self, request: Any, block_ids: Sequence[int]) -> bool:
        """The request has ended, by itself or not. True: its blocks are still needed."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return False
        if tracked.ticket is not None and self._materializes:
            self._take_if_there(tracked)
        if tracked.nomination is not None:
            ended = Declined("allocation_failed", "the request ended before its load")
            self._decline(tracked, ended)
        return self._capture(tracked, request, block_ids)

    def reset(self) -> bool:
        """Forgets all captured KV, as after new weights. The new generation makes leases stale."""
        for tracked in self._tracked.values():
            self._abandon(tracked)
            tracked.inexact = True
        self._plan.drops.extend(self._donors.reset())
        return True

    def shutdown(self) -> None:
        """Gives back what is held. What was captured ends with the engine."""
        for tracked in self._tracked.values():
            self._abandon(tracked)
        self._tracked.clear()
        self._lookups.close()
        self._donors.remove_all()
        self._control.close()
        self._audit.close()
        self._client.close()

    # Look-ups.

    def _begin(self, request: Any) -> _Tracked:
        asked = Asked(
            request.request_id,
            request.prompt_token_ids or (),
            getattr(request, "cache_salt", None),
            getattr(request, "lora_request", None),
        )
        tracked = _Tracked(asked, preemptions=getattr(request, "num_preemptions", 0))
        self._tracked[request.request_id] = tracked
        declined = self._not_asked(request)
        if declined is None:
            self._ask(tracked)
        else:
            self._record(tracked, declined)
        return tracked

    def _not_asked(self, request: Any) -> Declined | None:
        if declined := unsupported(request):
            return declined
        if self._namespace is None or self._unsupported:
            return Declined("unsupported_request", self._unsupported)
        tokens = len(request.prompt_token_ids)
        if tokens < self._min_prompt_tokens:
            return Declined("unsupported_request", f"a prompt of {tokens} tokens")
        return None

    def _ask(self, tracked: _Tracked) -> None:
        assert self._namespace is not None, "not asked before the workers are known"
        namespace = self._namespace
        holder = self._donors.holder if self._materializes else ""
        tracked.lookups += 1

        def ask() -> Answer:
            if self._engine.loads or not self._materializes:
                return self._nominator.look_up(tracked.asked, namespace, holder)
            return self._nominator.prepare(tracked.asked, namespace)

        self._submit(tracked, ask, holder)

    def _validate_again(self, tracked: _Tracked, nomination: Nomination, holder: str) -> None:
        namespace, prepared, tracked.nomination = self._namespace, tracked.prepared, None

        def check() -> Answer:
            checked = self._nominator.check(nomination, holder)
            if checked == LEASE_EXPIRED and namespace is not None:
                # It waited for its turn longer than a lease lasts. The donor may still be there.
                return self._nominator.look_up(tracked.asked, namespace, holder)
            return Answer(prepared, checked)

        if not self._submit(tracked, check, holder):
            self._release(tracked, nomination, Declined("provider_error"))

    def _submit(self, tracked: _Tracked, ask: Callable[[], Answer], holder: str) -> bool:
        ticket: Ticket[Answer] = Ticket()

        def work() -> None:
            answer = ask()
            if not ticket.deliver(answer):
                give_back(self._client, answer, holder)

        if not self._lookups.submit(work):
            self._record(tracked, Declined("provider_error", "too many look-ups wait already"))
            return False
        tracked.ticket = ticket
        tracked.give_up_s = time.monotonic() + LOOKUP_GRACE_S
        tracked.give_up_s += LOOKUP_CALLS_MAX * self._settings.lookup_timeout_s
        return True

    def _take(self, tracked: _Tracked) -> bool:
        """Takes the answer, or gives it up when it is late. False: it may still come."""
        assert tracked.ticket is not None, "only while an answer is awaited"
        if tracked.ticket.answer is None and time.monotonic() < tracked.give_up_s:
            return False
        if not self._take_if_there(tracked):
            self._record(tracked, Declined("provider_timeout", "the look-up's thread is late"))
        return True

    def _take_if_there(self, tracked: _Tracked) -> bool:
        """Takes the answer if there is one; nobody waits for it afterwards."""
        assert tracked.ticket is not None, "only while an answer is awaited"
        answer = tracked.ticket.abandon()
        tracked.ticket = None
        if answer is None:
            return False
        tracked.prepared = answer.prepared
        if isinstance(answer.result, Nomination):
            tracked.nomination = answer.result
            return True
        if answer.result.reason == "donor_stale":
            self._control.announce_soon()
        self._record(tracked, answer.result)
        return True

    def _preempted(self, tracked: _Tracked, request: Any) -> None:
        """Its blocks are gone. What was loaded may be loaded again."""
        tracked.preemptions = request.num_preemptions
        if tracked.loaded_tokens and tracked.lookups < LOOKUPS_MAX:
            tracked.loaded_tokens = 0
            self._ask(tracked)

    # Ways out. Each ends the lease.

    def _record(self, tracked: _Tracked, declined: Declined) -> None:
        self._audit.record(
            "declined",
            request_id=tracked.asked.request_id,
            reason=declined.reason,
            detail=declined.detail,
        )

    def _decline(self, tracked: _Tracked, declined: Declined) -> None:
        nomination, tracked.nomination, tracked.load = tracked.nomination, None, None
        if nomination is not None:
            self._release(tracked, nomination, declined)
        self._record(tracked, declined)

    def _release(self, tracked: _Tracked, nomination: Nomination, declined: Declined) -> None:
        local = declined.reason == "exact_prefix_sufficient"
        provenance = "exact_local_prefix_hit" if local else "candidate_rejected"
        self._report(tracked.asked.request_id, nomination, provenance, declined.reason)

    def _abandon(self, tracked: _Tracked) -> None:
        if tracked.ticket is not None:
            self._take_if_there(tracked)
        if tracked.nomination is not None:
            self._decline(tracked, Declined("donor_stale", "the engine is reset or ends"))

    def _loaded(self, request_id: str, result: LoadResult) -> None:
        """Every worker has ended its part of a load."""
        tracked = self._tracked.get(request_id)
        self._audit.record("load", request_id=request_id, **dataclasses.asdict(result))
        if tracked is None or tracked.nomination is None or tracked.load is None:
            return
        nomination, load = tracked.nomination, tracked.load
        tracked.nomination, tracked.load = None, None
        if result.reason:
            if result.reason == "donor_stale":
                self._control.announce_soon()
            if result.donor_lost:
                self._donors.remove(nomination.found.donor_id, nomination.found.namespace_id)
            blocks = len(load.block_ids)
            self._report(
                request_id, nomination, "fallback_recompute", result.reason, invalid_blocks=blocks
            )
            return
        exact = nomination.usable.exact
        tracked.loaded_tokens = len(load.tokens)
        tracked.inexact = tracked.inexact or not exact
        provenance = "exact_external_hit" if exact else "request_only_reuse"
        tokens = len(load.tokens) - load.target_start
        self._report(request_id, nomination, provenance, tokens_loaded=tokens)

    def _report(
        self,
        request_id: str,
        nomination: Nomination,
        provenance: str,
        reason: str = "",
        *,
        tokens_loaded: int = 0,
        invalid_blocks: int = 0,
    ) -> None:
        """Says what became of a nomination, which ends its lease."""
        self._audit.record(
            "reuse",
            request_id=request_id,
            donor_id=nomination.found.donor_id,
            provenance=provenance,
            reason=reason,
            tokens_loaded=tokens_loaded,
            invalid_blocks=invalid_blocks,
        )
        holder = self._donors.holder
        self._control.call(
            "reuse",
            lambda: self._client.report_reuse(
                request_id,
                provenance,
                reason=reason,
                holder=holder,
                lease_id=nomination.lease.id,
                tokens_loaded=tokens_loaded,
                invalid_blocks=invalid_blocks,
            ),
        )

    # Captures.

    def _capture(self, tracked: _Tracked, request: Any, block_ids: Sequence[int]) -> bool:
        complete = getattr(request.status, "name", "") in COMPLETE
        if not complete or tracked.inexact or request.num_output_tokens == 0:
            return False
        limits, prompt_tokens = self._engine.limits, len(tracked.asked.prompt)
        tokens = capturable(prompt_tokens, request.num_computed_tokens, len(block_ids), limits)
        if tokens <= tracked.loaded_tokens or not self._engine.captures:
            return False
        if not self._materializes:
            self._ended.append((tracked, tokens))
            return False
        prepared = tracked.prepared
        if prepared is None:
            return False
        save = self._donors.begin(request.request_id, prepared, tokens, block_ids, limits)
        if save is not None:
            self._plan.saves.append(save)
        return save is not None

    def _observe_ended(self) -> None:
        """What has ended is known to the service once its look-up has ended too."""
        while self._ended:
            tracked, tokens = self._ended[0]
            if tracked.ticket is not None and not self._take(tracked):
                return
            self._ended.popleft()
            if tracked.prepared is not None:
                self._donors.observe(tracked.asked.request_id, tracked.prepared, tokens)
