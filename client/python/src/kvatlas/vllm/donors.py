"""The donors that this engine owns: registered with the service once their KV is kept, removed when
it goes. Where nothing is kept, prompts are registered as what lies in the engine's own cache."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import queue
import time
from collections.abc import Iterable, Mapping, Sequence

from kvatlas.answers import Owner
from kvatlas.calls import Donor, Registration
from kvatlas.client import Client
from kvatlas.kvstore import Spec, remove_owned, store_identity
from kvatlas.namespace import Namespace
from kvatlas.vllm.audit import Audit
from kvatlas.vllm.control import OWNER_TTL_MS, Control
from kvatlas.vllm.decide import Limits, too_many_held
from kvatlas.vllm.messages import Save, SaveResult
from kvatlas.vllm.nominate import Prepared

# Donors remembered; beyond it the oldest may be captured again.
DONORS_MAX = 65536


@dataclasses.dataclass
class _Capture:
    prepared: Prepared
    tokens: int
    # The engine's, which wait to be copied; none of what is not copied.
    blocks: int
    request_id: str
    generation: int
    result: SaveResult | None = None


class OwnDonors:
    """Used on the scheduler's thread alone, but for `announce` and what the control thread hands
    back through a queue."""

    def __init__(
        self, owner: Owner, store: Spec | None, client: Client, control: Control, audit: Audit
    ) -> None:
        """Without a store, donors are in device memory, which nobody can read from outside."""
        # The owner's start time, in milliseconds since 1970.
        self.generation = int(time.time() * 1000)
        self._owner = owner
        self._store = store
        self._ids = f"{owner.worker_id}.{owner.dp_rank}."
        if store is None:
            self._medium, self.store_id = "device", f"device:{self._ids}"
        else:
            self._medium, self.store_id = store.medium, store_identity(store, owner.worker_id)
            # What is left of an owner of this name can be found by nobody any more.
            remove_owned(store, self._ids)
        self._client = client
        self._control = control
        self._audit = audit
        self._number = 0
        # Copies that are going on, by donor, and the blocks that they hold.
        self._captures: dict[str, _Capture] = {}
        self._held_blocks = 0
        # Donors by a digest of what they hold, oldest first; and the way back, with namespaces.
        self._by_digest: collections.OrderedDict[bytes, str] = collections.OrderedDict()
        self._known: dict[str, tuple[bytes, Namespace]] = {}
        self._refused: queue.SimpleQueue[str] = queue.SimpleQueue()
        # What the service has taken, as the control thread knows it, oldest first.
        self._taken: collections.OrderedDict[str, None] = collections.OrderedDict()

    @property
    def holder(self) -> str:
        """Under which leases are held."""
        return f"{self._owner.worker_id}/{self._owner.dp_rank}/{self.generation}"

    def announce(self) -> None:
        """Says to the service that the owner lives; called on the control thread."""
        generation = self.generation
        state = self._client.announce_owner(
            self._owner.worker_id, generation, dp_rank=self._owner.dp_rank, ttl_ms=OWNER_TTL_MS
        )
        if state.held_donors == 0:
            # A server that began anew, or a new generation: what comes again is captured again.
            # Captures that the service has not heard of yet are none of it.
            while self._taken:
                self._refused.put(self._taken.popitem()[0])

    def begin(
        self,
        request_id: str,
        prepared: Prepared,
        tokens: int,
        block_ids: Sequence[int],
        limits: Limits,
    ) -> Save | None:
        """A copy of a finished prompt's first tokens, which fill the first of its blocks; None when
        there is one already, or copies hold too many blocks."""
        # The engine keeps all of the request's until the copy is there.
        blocks = len(block_ids)
        if crowded := too_many_held(self._held_blocks, blocks, limits):
            if not self._is_known(prepared, tokens):
                self._audit.record(
                    "capture", request_id=request_id, tokens=tokens, kept=False, detail=crowded
                )
            return None
        donor_id = self._new_id(prepared, tokens)
        if donor_id is None:
            return None
        capture = _Capture(prepared, tokens, blocks, request_id, self.generation)
        self._captures[donor_id] = capture
        self._held_blocks += blocks
        packed = prepared.tokens[:tokens]
        copied = tuple(block_ids[: tokens // limits.block_size])
        return Save(request_id, donor_id, copied, packed, prepared.digest)

    def observe(self, request_id: str, prepared: Prepared, tokens: int) -> None:
        """A finished prompt whose KV lies in the engine's own cache, and nowhere else."""
        donor_id = self._new_id(prepared, tokens)
        if donor_id is not None:
            self._register(donor_id, _Capture(prepared, tokens, 0, request_id, self.generation))

    def saved(self, results: Mapping[str, SaveResult], workers: int) -> list[str]:
        """What the workers have kept is registered, once each has its share. Returns donors whose
        shares are of no use."""
        useless = []
        for donor_id, result in results.items():
            capture = self._captures.get(donor_id)
            if capture is None:
                continue
            capture.result = result if capture.result is None else capture.result.merged(result)
            if capture.result.workers < workers:
                continue
            del self._captures[donor_id]
            self._held_blocks -= capture.blocks
            kept = capture.result.kept == workers and capture.generation == self.generation
            self._audit.record(
                "capture",
                request_id=capture.request_id,
                donor_id=donor_id,
                tokens=capture.tokens,
                kept=kept,
                detail=capture.result.detail,
            )
            if kept:
                self._register(donor_id, capture)
            else:
                self._forget(donor_id)
                useless.append(donor_id)
        return useless

    def gone(self, donor_ids: Iterable[str]) -> None:
        """Their KV is no more: nobody is to be sent to it."""
        for donor_id in donor_ids:
            namespace = self._forget(donor_id)
            if namespace is not None:
                self.remove(donor_id, namespace)

    def remove(self, donor_id: str, namespace: Namespace | str) -> None:
        """Tells the service that a donor, ours or another's, cannot be read."""
        self._forget(donor_id)
        self._audit.record("removed", donor_id=donor_id)
        self._control.call(
            "removal",
            lambda: self._client.remove_donors([donor_id], namespace=namespace),
            lambda _: self._taken.pop(donor_id, None),
        )

    def refused(self) -> list[str]:
        """Donors that the service does not hold, so that their KV is of no use."""
        useless = []
        while not self._refused.empty():
            useless.append(self._refused.get_nowait())
            self._forget(useless[-1])
        return useless

    def reset(self) -> list[str]:
        """A new generation, in which nothing is captured yet. Returns the old one's donors."""
        self.generation = max(self.generation + 1, int(time.time() * 1000))
        useless = list(self._known)
        self._known.clear()
        self._by_digest.clear()
        self._control.announce_soon()
        return useless

    def remove_all(self) -> None:
        """The engine ends, and with it everything that it owns."""
        self._control.call("removal", lambda: self._client.remove_donors(owner=self._owner))
        if self._store is not None:
            remove_owned(self._store, self._ids)

    def _is_known(self, prepared: Prepared, tokens: int) -> bool:
        return _digest(prepared, tokens) in self._by_digest

    def _new_id(self, prepared: Prepared, tokens: int) -> str | None:
        """None: the same tokens are there already."""
        digest = _digest(prepared, tokens)
        if digest in self._by_digest:
            return None
        self._number += 1
        donor_id = f"{self._ids}{self.generation}.{self._number}"
        self._by_digest[digest] = donor_id
        self._known[donor_id] = (digest, prepared.namespace)
        if len(self._by_digest) > DONORS_MAX:
            del self._known[self._by_digest.popitem(last=False)[1]]
        return donor_id

    def _register(self, donor_id: str, capture: _Capture) -> None:
        donor = Donor(
            donor_id=donor_id,
            namespace=capture.prepared.namespace,
            owner=self._owner,
            owner_generation=capture.generation,
            tokens=capture.prepared.tokens,
            captured_tokens=capture.tokens,
            exact_tokens=capture.tokens,
            medium=self._medium,
            store_id=self.store_id,
            source_request_id=capture.request_id,
        )

        def then(registration: Registration) -> None:
            self._audit.record("registered", donor_id=donor_id, admission=registration.admission)
            if registration.admission in ("added", "replaced"):
                self._taken[donor_id] = None
                if len(self._taken) > DONORS_MAX:
                    self._taken.popitem(last=False)
            else:
                self._refused.put(donor_id)

        self._control.call(
            "registration",
            lambda: self._client.register_donor(donor),
            then,
            lambda: self._refused.put(donor_id),
            of_owner=True,
        )

    def _forget(self, donor_id: str) -> Namespace | None:
        digest, namespace = self._known.pop(donor_id, (b"", None))
        if self._by_digest.get(digest) == donor_id:
            del self._by_digest[digest]
        return namespace


def _digest(prepared: Prepared, tokens: int) -> bytes:
    """Of what a donor holds."""
    packed = prepared.tokens[:tokens]
    return hashlib.sha256(prepared.digest.encode() + packed.tobytes()).digest()
