"""KvatlasConnector: what vLLM calls, handed on to the scheduler's or the worker's side."""

# The signatures are vLLM's.
# ruff: noqa: ARG002

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base

from kvatlas.answers import Owner
from kvatlas.client import Client
from kvatlas.errors import KvatlasError
from kvatlas.forks import FORK_WAIT_S_MAX
from kvatlas.kvstore import open_store, parse_spec
from kvatlas.settings import Settings
from kvatlas.vllm import engine
from kvatlas.vllm.audit import Audit
from kvatlas.vllm.control import Control
from kvatlas.vllm.decide import Limits
from kvatlas.vllm.donors import OwnDonors
from kvatlas.vllm.lookups import Lookups
from kvatlas.vllm.messages import StepPlan, WorkerFacts, WorkerReport
from kvatlas.vllm.nominate import Nominator
from kvatlas.vllm.pages import UnsupportedCache, paged_cache
from kvatlas.vllm.scheduler import Engine, Parts, SchedulerSide
from kvatlas.vllm.worker import WorkerSide

MIN_REUSE_TOKENS_DEFAULT = 512


class KvatlasConnector(base.KVConnectorBase_V1, base.SupportsHMA):  # type: ignore[misc]
    """Asks kvatlas whose KV a prompt can borrow, and in the mode exact_prefix borrows it.

    `SupportsHMA`, so that engines with several cache groups start; their requests are declined.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        taken = inspect.signature(base.KVConnectorBase_V1.__init__).parameters
        described = {"kv_cache_config": kv_cache_config} if "kv_cache_config" in taken else {}
        super().__init__(vllm_config=vllm_config, role=role, **described)
        transfer = vllm_config.kv_transfer_config
        self._config = vllm_config
        self._groups = kv_cache_config
        self._settings = Settings.load(transfer.kv_connector_extra_config or {})
        engine.check_mode(vllm_config, self._settings.mode)
        self._worker_id = engine.worker_id(vllm_config)
        self._facts: WorkerFacts | None = None
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == base.KVConnectorRole.SCHEDULER:
            self._scheduler = self._scheduler_side()
        elif self._settings.mode != "discovery_only":
            self._worker = self._worker_side()

    @property
    def requires_kv_delivery(self) -> bool:
        """A capture that is lost is a later miss."""
        return False

    # The scheduler's side.

    def set_xfer_handshake_metadata(self, metadata: Mapping[Any, Any]) -> None:
        """Takes in what the workers said of themselves."""
        if self._scheduler is None:
            return
        facts = list(metadata.values())
        backends = {fact.attention_backend for fact in facts}
        unsupported = next((fact.unsupported for fact in facts if fact.unsupported), "")
        backend = backends.pop() if len(backends) == 1 else ""
        namespace = engine.namespace(self._config, self._groups, backend)
        self._scheduler.workers_are(namespace, unsupported)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[Any, Any]) -> None:
        """The same, by pipeline rank and tensor rank."""
        self.set_xfer_handshake_metadata(metadata)

    def on_new_request(self, request: Any) -> None:
        """A request has come."""
        self._in_scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens that can be loaded beyond the computed ones; None: not known yet."""
        return self._in_scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has its blocks."""
        self._in_scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepPlan:
        """What the workers are to do in this step."""
        return self._in_scheduler.step_plan(scheduler_output.total_num_scheduled_tokens)

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers have done."""
        report = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(report, WorkerReport):
            self._in_scheduler.workers_report(report)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Whether the request's blocks are still needed."""
        return self._in_scheduler.finished(request, block_ids), None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, for engines that hand over every cache group; only one is served."""
        return self.request_finished(request, block_ids[0])

    def reset_cache(self) -> bool:
        """Forgets all captured KV."""
        return self._in_scheduler.reset()

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The layers' caches are there."""
        backend = engine.attention_backend(self._config, kv_caches)
        mode = self._settings.mode
        unsupported = engine.unsupported(self._config, self._groups, mode)
        if self._worker is not None and not unsupported:
            try:
                blocks = engine.managed_blocks(self._config, self._groups)
                cache = paged_cache(kv_caches, blocks)
                self._worker.caches_are(cache, engine.mover(self._config, mode, kv_caches))
            except UnsupportedCache as error:
                unsupported = str(error)
        self._facts = WorkerFacts(backend, unsupported)

    def get_handshake_metadata(self) -> WorkerFacts | None:
        """What this worker says of itself to the scheduler's side."""
        return self._facts

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Starts this step's loads and saves, beside the forward pass."""
        if self._worker is not None and isinstance(self._connector_metadata, StepPlan):
            self._worker.begin(self._connector_metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a forward pass never depends on a load that goes on."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing to do: whole prompts are kept once they have finished."""

    def wait_for_save(self) -> None:
        """Nothing to wait for: a finished request's blocks stay until `get_finished` names it."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose saves and loads have ended."""
        if self._worker is None:
            return None, None
        saved, loaded = self._worker.ended()
        return saved or None, loaded or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that were not filled."""
        return set() if self._worker is None else self._worker.take_invalid_blocks()

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """What the scheduler's side is told."""
        return None if self._worker is None else self._worker.take_report()

    def shutdown(self) -> None:
        """Gives back what is held."""
        if self._scheduler is not None:
            self._scheduler.shutdown()
        if self._worker is not None:
            self._worker.close()

    @property
    def _in_scheduler(self) -> SchedulerSide:
        assert self._scheduler is not None, "vLLM calls it in the scheduler alone"
        return self._scheduler

    def _scheduler_side(self) -> SchedulerSide:
        settings, transfer = self._settings, self._config.kv_transfer_config
        parallel = self._config.parallel_config
        client, audit = self._client(), Audit(settings.audit_path)
        control, lookups = Control(), Lookups()
        lookups.submit(lambda: _connect(client))
        materializes = settings.mode != "discovery_only"
        owner = Owner(self._worker_id, getattr(parallel, "data_parallel_rank", 0))
        store = parse_spec(settings.kv_store) if materializes else None
        donors = OwnDonors(owner, store, client, control, audit)
        control.start(donors.announce)
        limits = Limits(
            block_size=engine.block_size(self._config, self._groups),
            min_reuse_tokens=MIN_REUSE_TOKENS_DEFAULT
            if settings.min_reuse_tokens is None
            else settings.min_reuse_tokens,
            moves=engine.moves(self._config, settings.mode),
            held=engine.held(self._config, self._groups),
        )
        stores = (donors.store_id,) if materializes else ()
        nominator = Nominator(client, settings, limits, audit, stores)
        return SchedulerSide(
            Engine(
                workers=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
                limits=limits,
                loads=transfer.is_kv_consumer,
                captures=transfer.is_kv_producer,
            ),
            settings,
            Parts(client, audit, lookups, nominator, control, donors),
        )

    def _worker_side(self) -> WorkerSide:
        store = open_store(parse_spec(self._settings.kv_store), engine.shard_name(self._config))
        return WorkerSide(self._client(), store)

    def _client(self) -> Client:
        settings = self._settings
        return Client(
            settings.address,
            lookup_timeout_s=settings.lookup_timeout_s,
            token_file=settings.token_file,
            tls_ca=settings.tls_ca,
            # Calls have threads of their own here, and the scheduler waits for none of them. One of
            # grpcio's for each would take the interpreter's lock from it.
            control_timeout_s=FORK_WAIT_S_MAX,
            punctual=False,
        )


def _connect(client: Client) -> None:
    """So that the first look-up need not wait for the connection."""
    with contextlib.suppress(KvatlasError):
        client.status()
