"""What the connector's two sides tell each other, through the engine, once a step."""

from __future__ import annotations

import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kvatlas.kvstore.record import TokenIds


class _Unlogged:
    """Of a step that fails, vLLM logs every field of everything, whatever its `repr` hides, but
    asks for this where there is one."""

    def anon_repr(self) -> str:
        return f"{type(self).__name__}(...)"


@dataclasses.dataclass(frozen=True)
class Load(_Unlogged):
    """Blocks to be filled from a donor's pages."""

    request_id: str
    donor_id: str
    # Checked once more before anything is read.
    lease_id: bytes = dataclasses.field(repr=False)
    holder: str
    # The engine's blocks to fill, in order; the first holds the prompt's token `target_start`.
    block_ids: tuple[int, ...]
    target_start: int
    # The prompt up to the end of the last block to fill, which the donor's tokens from
    # `donor_offset` on must be.
    tokens: TokenIds = dataclasses.field(repr=False)
    donor_offset: int
    # Digest of the namespace.
    namespace: str


@dataclasses.dataclass(frozen=True)
class Save(_Unlogged):
    """A finished prompt's blocks to be kept. They stay until the worker says that it is done."""

    request_id: str
    donor_id: str
    block_ids: tuple[int, ...]
    # As many as fill the blocks.
    tokens: TokenIds = dataclasses.field(repr=False)
    namespace: str


@dataclasses.dataclass
class StepPlan(_Unlogged, KVConnectorMetadata):  # type: ignore[misc]
    """From the scheduler to every worker."""

    loads: list[Load] = dataclasses.field(default_factory=list)
    saves: list[Save] = dataclasses.field(default_factory=list)
    # Donors that nobody can find any more.
    drops: list[str] = dataclasses.field(default_factory=list)
    # The model does not run in this step, and look-ups are awaited.
    idle: bool = False
    looking: bool = False

    def anon_repr(self) -> str:
        """How much there is of each."""
        counts = f"loads={len(self.loads)}, saves={len(self.saves)}, drops={len(self.drops)}"
        return f"StepPlan({counts}, idle={self.idle}, looking={self.looking})"


@dataclasses.dataclass(frozen=True)
class LoadResult:
    """What became of a load: an empty reason means that every block was filled."""

    # How many workers have said so.
    workers: int
    reason: str
    detail: str
    # The store's pages are gone or spoilt for good.
    donor_lost: bool

    def merged(self, other: LoadResult) -> LoadResult:
        """One worker that failed means that all have."""
        worse = other if other.reason and not self.reason else self
        return dataclasses.replace(
            worse,
            workers=self.workers + other.workers,
            donor_lost=self.donor_lost or other.donor_lost,
        )


@dataclasses.dataclass(frozen=True)
class SaveResult:
    """How many workers are done with a donor, and how many of them hold their share of it."""

    workers: int
    kept: int
    detail: str

    def merged(self, other: SaveResult) -> SaveResult:
        """Both workers' shares together."""
        return SaveResult(
            self.workers + other.workers, self.kept + other.kept, self.detail or other.detail
        )


@dataclasses.dataclass
class WorkerReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """From the workers to the scheduler."""

    loads: dict[str, LoadResult] = dataclasses.field(default_factory=dict)
    saves: dict[str, SaveResult] = dataclasses.field(default_factory=dict)
    # Donors that made room in the store.
    evicted: set[str] = dataclasses.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.loads or self.saves or self.evicted)

    def aggregate(self, other: WorkerReport) -> WorkerReport:
        """What two workers say, as one."""
        for request_id, load in other.loads.items():
            mine = self.loads.get(request_id)
            self.loads[request_id] = load if mine is None else mine.merged(load)
        for donor_id, save in other.saves.items():
            kept = self.saves.get(donor_id)
            self.saves[donor_id] = save if kept is None else kept.merged(save)
        self.evicted |= other.evicted
        return self


@dataclasses.dataclass(frozen=True)
class WorkerFacts(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """What only a worker knows, once its KV caches are there."""

    # Empty where it could not be found out.
    attention_backend: str
    # Why nothing can be captured or loaded; empty where it can.
    unsupported: str
