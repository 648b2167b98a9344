"""A small engine that drives the connector as vLLM does: the same calls, in the same order.

It has a paged KV cache with a prefix cache, chunked prefill, preemption, abort, loads beside the
schedule, and blocks that stay until a save has ended. Its model makes each token's KV from the KV
before it and each output from all KV, so that one wrong byte anywhere changes what it says.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import types
from pathlib import Path
from typing import Any

import fake_vllm
import numpy as np

from kvatlas.vllm import KvatlasConnector

BLOCK_SIZE = 16
LAYERS = 2
VOCABULARY = 30_000
STEPS_MAX = 200_000
_MASK = 2**64 - 1


class Status(enum.Enum):
    WAITING = 0
    WAITING_FOR_REMOTE_KVS = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_ABORTED = 6


@dataclasses.dataclass(eq=False)
class Request:
    request_id: str
    prompt_token_ids: list[int] | None
    max_tokens: int = 4
    cache_salt: str | None = None
    lora_request: Any = None
    mm_features: Any = ()
    prompt_embeds: Any = None
    pooling_params: Any = None
    sampling_params: Any = None
    skip_reading_prefix_cache: bool = False
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    output: list[int] = dataclasses.field(default_factory=list)
    # How many of its tokens the model has computed, over all attempts.
    computed: int = 0

    @property
    def tokens(self) -> list[int]:
        return (self.prompt_token_ids or []) + self.output

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output)

    @property
    def finished(self) -> bool:
        return self.status.name.startswith("FINISHED")


def model_outputs(prompt: list[int], max_tokens: int) -> list[int]:
    """What the model says without any cache."""
    state, total, output = [0] * LAYERS, 0, []
    for token in prompt:
        state = [next_kv(kv, token, layer) for layer, kv in enumerate(state)]
        total += sum(state)
    while True:
        output.append(total % VOCABULARY)
        if len(output) == max_tokens:
            return output
        state = [next_kv(kv, output[-1], layer) for layer, kv in enumerate(state)]
        total += sum(state)


def next_kv(before: int, token: int, layer: int) -> int:
    return (before * 6364136223846793005 + token * 1442695040888963407 + layer + 1) & _MASK


class Pool:
    """Blocks, and what the prefix cache knows of them."""

    def __init__(self, blocks: int) -> None:
        self._references = [0] * blocks
        self._hashes: dict[int, int] = {}
        self._by_hash: dict[int, int] = {}
        # The one freed longest ago goes first.
        self._free = collections.OrderedDict.fromkeys(range(blocks))

    def take(self, count: int) -> list[int] | None:
        if count > len(self._free):
            return None
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._references[block] = 1
            self._forget(block)
        return taken

    def share(self, block: int) -> None:
        self._free.pop(block, None)
        self._references[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self._references[block] -= 1
            assert self._references[block] >= 0, "a block given back twice"
            if self._references[block] == 0:
                self._free[block] = None

    def cached(self, key: int) -> int | None:
        return self._by_hash.get(key)

    def cache(self, block: int, key: int) -> None:
        if key not in self._by_hash:
            self._forget(block)
            self._by_hash[key], self._hashes[block] = block, key

    def reset(self) -> None:
        self._by_hash.clear()
        self._hashes.clear()

    @property
    def free(self) -> int:
        return len(self._free)

    def _forget(self, block: int) -> None:
        key = self._hashes.pop(block, None)
        if key is not None and self._by_hash.get(key) == block:
            del self._by_hash[key]


def engine_config(extra: dict[str, Any], model: Path, **changes: Any) -> Any:
    """A vLLM configuration, as far as the connector reads it."""
    name = types.SimpleNamespace
    layer = name(get_attn_backend=lambda: name(get_name=lambda: "FAKE"))
    config = name(
        model_config=name(
            model=str(model),
            revision=None,
            hf_config=name(),
            hf_text_config=name(rope_theta=10_000.0),
            tokenizer=str(model),
            tokenizer_revision=None,
            tokenizer_mode="auto",
            dtype="torch.bfloat16",
            quantization=None,
        ),
        load_config=name(load_format="auto"),
        cache_config=name(
            cache_dtype="auto",
            block_size=BLOCK_SIZE,
            kv_cache_layout="LBNHC",
            enable_prefix_caching=True,
        ),
        parallel_config=name(tensor_parallel_size=1, pipeline_parallel_size=1, rank=0),
        compilation_config=name(
            static_forward_context={f"layer.{number}": layer for number in range(LAYERS)}
        ),
        speculative_config=None,
        kv_transfer_config=name(
            engine_id="engine-0",
            kv_connector_extra_config=extra,
            kv_load_failure_policy="recompute",
            is_kv_producer=True,
            is_kv_consumer=True,
        ),
    )
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = config
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, value)
    return config


class FullAttentionSpec:
    block_size = BLOCK_SIZE


def cache_config(blocks: int, groups: int = 1) -> Any:
    group = types.SimpleNamespace(kv_cache_spec=FullAttentionSpec())
    layer = types.SimpleNamespace(size=blocks * BLOCK_SIZE * np.dtype(np.uint64).itemsize)
    return types.SimpleNamespace(
        num_blocks=blocks, kv_cache_tensors=[layer] * LAYERS, kv_cache_groups=[group] * groups
    )


class FakeWorker:
    """One worker's connector, and its share of the layers."""

    def __init__(self, config: Any, described: Any, rank: int, layers: range) -> None:
        config = copy.copy(config)
        config.parallel_config = copy.copy(config.parallel_config)
        config.parallel_config.rank = rank
        self.connector = KvatlasConnector(config, fake_vllm.KVConnectorRole.WORKER, described)
        self.layers = {
            f"layer.{number}": np.zeros((described.num_blocks, BLOCK_SIZE), np.uint64)
            for number in layers
        }
        self.connector.register_kv_caches(self.layers)


class FakeEngine:
    """One scheduler, and a worker for each part of the layers."""

    def __init__(
        self, config: Any, *, blocks: int = 512, batch_tokens: int = 4096, groups: int = 1
    ) -> None:
        self.batch_tokens = batch_tokens
        described = cache_config(blocks, groups)
        role = fake_vllm.KVConnectorRole
        self.scheduler = KvatlasConnector(config, role.SCHEDULER, described)
        count = config.parallel_config.tensor_parallel_size
        share = LAYERS // count
        self.workers = [
            FakeWorker(config, described, rank, range(rank * share, (rank + 1) * share))
            for rank in range(count)
        ]
        self.worker = self.workers[0].connector
        self.layers = {
            name: layer for worker in self.workers for name, layer in worker.layers.items()
        }
        self.scheduler.set_xfer_handshake_metadata_pp_aware(
            {
                (0, rank): worker.connector.get_handshake_metadata()
                for rank, worker in enumerate(self.workers)
            }
        )
        # How many workers have said so of a request.
        self._sent: collections.Counter[str] = collections.Counter()
        self._filled: collections.Counter[str] = collections.Counter()
        self.pool = Pool(blocks)
        self.requests: dict[str, Request] = {}
        self.finished: dict[str, Request] = {}
        self.waiting: collections.deque[Request] = collections.deque()
        self.running: list[Request] = []
        self._blocks: dict[str, list[int]] = {}
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._ended: set[str] = set()
        self.preemptions = 0
        self.caching = config.cache_config.enable_prefix_caching

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.scheduler.on_new_request(request)

    def run(self, *requests: Request) -> list[list[int]]:
        """All at once; what each said."""
        for request in requests:
            self.add(request)
        for _ in range(STEPS_MAX):
            if not self.requests:
                return [request.output for request in requests]
            self.step()
        raise AssertionError(f"not finished after {STEPS_MAX} steps")

    def step(self) -> None:
        scheduled = self._schedule()
        ended, self._ended = self._ended, set()
        output = types.SimpleNamespace(
            finished_req_ids=ended,
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
        )
        plan = self.scheduler.build_connector_meta(output)
        for request_id, tokens in scheduled.items():
            self.requests[request_id].num_computed_tokens += tokens
        said, result = self._execute(plan, scheduled, ended)
        self._update(scheduled, said, result)

    def abort(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is None or request.finished:
            return
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        loading = (
            request.status is Status.WAITING_FOR_REMOTE_KVS and request_id not in self._received
        )
        self._received.discard(request_id)
        self._failed.discard(request_id)
        request.status = Status.FINISHED_ABORTED
        self._free(request, delayed=loading)

    def reset_prefix_cache(self) -> None:
        self.pool.reset()

    def preempt(self, request: Request) -> None:
        """As vLLM does when blocks run out, or at a reset."""
        self.running.remove(request)
        self.pool.give_back(self._blocks.pop(request.request_id))
        request.status = Status.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def close(self) -> None:
        self.scheduler.shutdown()
        for worker in self.workers:
            worker.connector.shutdown()

    # The scheduler.

    def _schedule(self) -> dict[str, int]:
        budget, scheduled, preempted = self.batch_tokens, {}, False
        for request in list(self.running):
            if request not in self.running or budget == 0:
                continue
            tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            while not self._grow(request, request.num_computed_tokens + tokens):
                victim = self.running[-1]
                preempted = True
                scheduled.pop(victim.request_id, None)
                self.preempt(victim)
                if victim is request:
                    break
            if request in self.running:
                scheduled[request.request_id] = tokens
                budget -= tokens
        if not preempted:
            self._admit(scheduled, budget)
        return scheduled

    def _admit(self, scheduled: dict[str, int], budget: int) -> None:
        skipped = []
        while self.waiting and budget > 0:
            request = self.waiting[0]
            if not self._ready(request):
                skipped.append(self.waiting.popleft())
                continue
            shared, external, beside = [], 0, False
            if request.num_computed_tokens == 0:
                shared = self._cached_blocks(request)
                local = len(shared) * BLOCK_SIZE
                matched, beside = self.scheduler.get_num_new_matched_tokens(request, local)
                if request.skip_reading_prefix_cache:
                    matched, beside = 0, False
                if matched is None:
                    assert not beside
                    skipped.append(self.waiting.popleft())
                    continue
                external = matched
                assert external % BLOCK_SIZE == 0
                assert local + external < request.num_tokens or not external
                computed = local + external
            else:
                computed = request.num_computed_tokens
            tokens = 0 if beside else min(request.num_tokens - computed, budget)
            if not self._grow(request, computed + tokens, shared):
                break
            blocks = self._blocks[request.request_id]
            given = types.SimpleNamespace(get_block_ids=lambda blocks=blocks: (list(blocks),))
            self.scheduler.update_state_after_alloc(request, given, external)
            self.waiting.popleft()
            request.num_computed_tokens = computed
            if beside:
                request.status = Status.WAITING_FOR_REMOTE_KVS
                skipped.append(request)
                continue
            request.status = Status.RUNNING
            self.running.append(request)
            scheduled[request.request_id] = tokens
            budget -= tokens
        self.waiting.extendleft(reversed(skipped))

    def _ready(self, request: Request) -> bool:
        if request.status is not Status.WAITING_FOR_REMOTE_KVS:
            return True
        if request.request_id not in self._received:
            return False
        self._received.remove(request.request_id)
        if request.request_id in self._failed:
            self._failed.remove(request.request_id)
            if request.num_computed_tokens == 0:
                self.pool.give_back(self._blocks.pop(request.request_id))
        self._cache_blocks(request)
        request.status = Status.PREEMPTED if request.num_preemptions else Status.WAITING
        return True

    def _grow(self, request: Request, tokens: int, shared: list[int] | None = None) -> bool:
        held = self._blocks.get(request.request_id, [])
        for block in shared or ():
            self.pool.share(block)
        wanted = -(-tokens // BLOCK_SIZE) - len(held) - len(shared or ())
        more = self.pool.take(max(0, wanted))
        if more is None:
            self.pool.give_back(shared or [])
            return False
        self._blocks[request.request_id] = held + (shared or []) + more
        return True

    def _keys(self, request: Request, tokens: int) -> list[int]:
        key, keys = hash(request.cache_salt), []
        for start in range(0, tokens - tokens % BLOCK_SIZE, BLOCK_SIZE):
            key = hash((key, tuple(request.tokens[start : start + BLOCK_SIZE])))
            keys.append(key)
        return keys

    def _cached_blocks(self, request: Request) -> list[int]:
        """Of the longest prefix in the cache; the last token is always computed."""
        found: list[int] = []
        if self.caching and not request.skip_reading_prefix_cache:
            for key in self._keys(request, request.num_tokens - 1):
                block = self.pool.cached(key)
                if block is None:
                    break
                found.append(block)
        return found

    def _cache_blocks(self, request: Request) -> None:
        if self.caching:
            keys = self._keys(request, request.num_computed_tokens)
            blocks = self._blocks.get(request.request_id, [])
            for key, block in zip(keys, blocks, strict=False):
                self.pool.cache(block, key)

    def _free(self, request: Request, *, delayed: bool = False) -> None:
        blocks = self._blocks.get(request.request_id, [])
        computed = -(-request.num_computed_tokens // BLOCK_SIZE)
        if self.scheduler.request_finished_all_groups(request, (blocks[:computed],))[0]:
            delayed = True
        self._ended.add(request.request_id)
        if not delayed:
            self._free_blocks(request.request_id)

    def _free_blocks(self, request_id: str) -> None:
        self.pool.give_back(self._blocks.pop(request_id, []))
        self.finished[request_id] = self.requests.pop(request_id)

    # The worker.

    def _execute(
        self, plan: Any, scheduled: dict[str, int], ended: set[str]
    ) -> tuple[dict[str, int], Any]:
        for worker in self.workers:
            worker.connector.bind_connector_metadata(plan)
        said = {}
        for request_id, tokens in scheduled.items():
            request = self.requests[request_id]
            first = request.num_computed_tokens - tokens
            total = self._forward(request, first, request.num_computed_tokens)
            if request.num_computed_tokens == request.num_tokens:
                said[request_id] = total % VOCABULARY
        result = types.SimpleNamespace(
            finished_sending=set(),
            finished_recving=set(),
            invalid_block_ids=set(),
            kv_connector_worker_meta=None,
        )
        for worker in self.workers:
            self._finish(worker.connector, ended, result)
        return said, result

    def _finish(self, connector: Any, ended: set[str], result: Any) -> None:
        """One worker's end of a step; a request is done once every worker has said so."""
        connector.start_load_kv(None)
        connector.wait_for_save()
        for counter, names, done in zip(
            (self._sent, self._filled),
            connector.get_finished(ended),
            (result.finished_sending, result.finished_recving),
            strict=True,
        ):
            for name in names or ():
                counter[name] += 1
                if counter[name] == len(self.workers):
                    del counter[name]
                    done.add(name)
        result.invalid_block_ids |= connector.get_block_ids_with_load_errors()
        report = connector.build_connector_worker_meta()
        if report is not None:
            so_far = result.kv_connector_worker_meta
            merged = report if so_far is None else so_far.aggregate(report)
            result.kv_connector_worker_meta = merged
        connector.clear_connector_metadata()

    def _forward(self, request: Request, first: int, end: int) -> int:
        request.computed += end - first
        slots = self._slots(request, end)
        total = 0
        for number, layer in enumerate(self.layers.values()):
            flat = layer.reshape(-1)
            kv = int(flat[slots[first - 1]]) if first else 0
            for slot, token in zip(slots[first:end], request.tokens[first:end], strict=True):
                kv = next_kv(kv, token, number)
                flat[slot] = kv
            total += sum(int(value) for value in flat[slots])
        return total

    def _slots(self, request: Request, end: int) -> list[int]:
        blocks = self._blocks[request.request_id]
        return [
            blocks[token // BLOCK_SIZE] * BLOCK_SIZE + token % BLOCK_SIZE for token in range(end)
        ]

    # The scheduler again.

    def _update(self, scheduled: dict[str, int], said: dict[str, int], result: Any) -> None:
        self._mark_invalid(result.invalid_block_ids)
        for request_id in scheduled:
            request = self.requests[request_id]
            if request_id not in said or request.finished:
                self._cache_blocks(request)
                continue
            self._cache_blocks(request)
            request.output.append(said[request_id])
            if request.num_output_tokens >= request.max_tokens:
                request.status = Status.FINISHED_LENGTH_CAPPED
                self.running.remove(request)
                self._free(request)
        self.scheduler.update_connector_output(result)
        for request_id in result.finished_recving or ():
            request = self.requests[request_id]
            if request.status is Status.WAITING_FOR_REMOTE_KVS:
                self._received.add(request_id)
            else:
                assert request.finished, "received for a request that waits for nothing"
                self._free_blocks(request_id)
        for request_id in result.finished_sending or ():
            assert self.requests[request_id].finished
            self._free_blocks(request_id)

    def _mark_invalid(self, invalid: set[int]) -> None:
        for request in self.waiting:
            if request.status is not Status.WAITING_FOR_REMOTE_KVS:
                continue
            for index, block in enumerate(self._blocks[request.request_id]):
                if block in invalid:
                    request.num_computed_tokens = index * BLOCK_SIZE
                    self._failed.add(request.request_id)
                    break
