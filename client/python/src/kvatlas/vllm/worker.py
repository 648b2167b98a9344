"""The connector in a worker: fills blocks from the store, and keeps finished prompts' blocks.

Both run on threads beside the forward pass, behind bounded queues. The engine leaves the blocks
alone until the worker has said that it is done with them. A block counts as filled only when every
block of its load is; any doubt makes all of them invalid, and the engine computes them.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from kvatlas.client import Client
from kvatlas.kvstore import ReadError, Record, Store, Wanted
from kvatlas.kvstore.record import Pages
from kvatlas.vllm.messages import Load, LoadResult, Save, SaveResult, StepPlan, WorkerReport
from kvatlas.vllm.move import Mover
from kvatlas.vllm.pages import PagedCache

LOADS_QUEUE_MAX = 256
LOAD_THREADS = 2
# Small jobs; how much waits in them is bounded by the blocks that they hold.
SAVES_QUEUE_MAX = 4096
# A load that has not begun to fill blocks by then is given up.
LOAD_S_MAX = 10.0
# Nobody's schedule waits for this call, unlike a look-up.
VALIDATE_S = 0.25
# In a step without the model, so long is waited for loads, saves and look-ups: an engine that only
# asks again and again would keep the interpreter's lock from the threads that it waits for.
IDLE_S = 0.001
# Threads are given so long to end.
CLOSE_S = 2.0

_log = logging.getLogger("kvatlas.vllm")


class _Going:
    """A load that is going on. It fills blocks only if nobody has given it up before."""

    def __init__(self, load: Load, begun_s: float) -> None:
        self.load = load
        self.begun_s = begun_s
        self._lock = threading.Lock()
        self._filling = False
        self._given_up = False

    def may_fill(self) -> bool:
        """From now on nobody gives it up. False: somebody has."""
        with self._lock:
            self._filling = not self._given_up
            return self._filling

    def give_up(self) -> bool:
        """From now on it fills nothing. False: it has begun to."""
        with self._lock:
            self._given_up = not self._filling
            return self._given_up


@dataclasses.dataclass(frozen=True)
class _Done:
    load: Load
    result: LoadResult


class WorkerSide:
    """One worker's loads and saves. vLLM's thread calls it; results are told to that thread."""

    def __init__(self, client: Client, store: Store) -> None:
        self._client = client
        self._store = store
        self._cache: PagedCache | None = None
        self._mover: Mover | None = None
        self._going: dict[str, _Going] = {}
        self._saving = 0
        self._any_done = threading.Event()
        self._loads_done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._saves_done: queue.SimpleQueue[tuple[Save, SaveResult, list[str]]] = (
            queue.SimpleQueue()
        )
        self._invalid_blocks: set[int] = set()
        self._report = WorkerReport()
        self._begun: StepPlan | None = None
        self._load_lane = _Lane("load", LOAD_THREADS, LOADS_QUEUE_MAX, self._load)
        self._save_lane = _Lane("save", 1, SAVES_QUEUE_MAX, self._save)

    def caches_are(self, cache: PagedCache, mover: Mover | None = None) -> None:
        """The engine's caches; nothing is loaded or saved before. Without a mover, nothing is
        loaded from another position."""
        self._cache, self._mover = cache, mover

    def begin(self, plan: StepPlan) -> None:
        """Starts what the scheduler wants, once. Waits for nothing."""
        if plan is self._begun:
            return
        self._begun = plan
        self._saving += len(plan.saves)
        for load in plan.loads:
            going = _Going(load, time.monotonic())
            self._going[load.request_id] = going
            if not self._load_lane.offer(going):
                self._loads_done.put(_Done(load, _failed("load_failed", "too many loads wait")))
        for save in plan.saves:
            if not self._save_lane.offer(save):
                self._saves_done.put((save, SaveResult(1, 0, "too many saves wait"), []))
        for donor_id in plan.drops:
            self._save_lane.offer(donor_id)

    def ended(self) -> tuple[set[str], set[str]]:
        """Requests whose blocks were kept, or not, and those whose blocks were filled, or not.

        Which ones were not is in `take_invalid_blocks` and `take_report` of the same step.
        """
        self._wait_in_idle_step()
        self._give_up_late_loads()
        kept, filled = set(), set()
        while not self._saves_done.empty():
            save, saved, evicted = self._saves_done.get_nowait()
            self._saving -= 1
            kept.add(save.request_id)
            self._report.saves[save.donor_id] = saved
            self._report.evicted.update(evicted)
        while not self._loads_done.empty():
            done = self._loads_done.get_nowait()
            going = self._going.get(done.load.request_id)
            if going is None or going.load is not done.load:
                # It was given up, which has been told already.
                continue
            del self._going[done.load.request_id]
            filled.add(done.load.request_id)
            self._report.loads[done.load.request_id] = done.result
            if done.result.reason:
                self._invalid_blocks.update(done.load.block_ids)
        return kept, filled

    def take_invalid_blocks(self) -> set[int]:
        """Blocks that were to be filled and are not."""
        invalid, self._invalid_blocks = self._invalid_blocks, set()
        return invalid

    def take_report(self) -> WorkerReport | None:
        """For the scheduler's side; None when there is nothing to say."""
        if not self._report:
            return None
        report, self._report = self._report, WorkerReport()
        return report

    def close(self) -> None:
        """Ends the threads."""
        self._load_lane.close()
        self._save_lane.close()
        self._client.close()

    def _wait_in_idle_step(self) -> None:
        plan = self._begun
        if plan is None or not plan.idle:
            return
        if self._going or self._saving or plan.looking:
            self._any_done.wait(IDLE_S)
        self._any_done.clear()

    def _give_up_late_loads(self) -> None:
        now = time.monotonic()
        for going in list(self._going.values()):
            if now - going.begun_s > LOAD_S_MAX and going.give_up():
                failed = _failed("load_failed", f"not within {LOAD_S_MAX:.0f} s")
                self._loads_done.put(_Done(going.load, failed))

    def _load(self, going: _Going) -> None:
        try:
            result = self._fill(going)
        except Exception as error:
            _log.exception("a load failed")
            result = _failed("load_failed", type(error).__name__)
        if result is not None:
            self._loads_done.put(_Done(going.load, result))
            self._any_done.set()

    def _fill(self, going: _Going) -> LoadResult | None:
        """None: it was given up, and that has been told."""
        load, cache = going.load, self._cache
        if cache is None:
            return _failed("load_failed", "no cache to fill")
        state, _ = self._client.validate(load.lease_id, load.holder, timeout_s=VALIDATE_S)
        if state != "valid":
            return _failed("donor_stale", f"the lease is {state}")
        try:
            pages = self._read(load, cache.layout)
        except ReadError as error:
            return _failed("load_failed", str(error), donor_lost=error.for_good)
        if len(pages) != len(load.block_ids):
            return _failed("invalid_blocks", "another number of blocks than promised")
        if not going.may_fill():
            return None
        cache.write(load.block_ids, pages)
        return LoadResult(1, "", "", donor_lost=False)

    def _read(self, load: Load, layout: str) -> Pages:
        tokens = len(load.tokens) - load.target_start
        block_size = tokens // len(load.block_ids)
        start = load.donor_offset + load.target_start
        wanted = Wanted(
            first=start // block_size,
            # The last block whole, also where the tokens end within it.
            end=-(-(start + tokens) // block_size),
            tokens=load.tokens,
            donor_start=load.donor_offset,
            namespace=load.namespace,
            layout=layout,
        )
        pages = self._store.read(load.donor_id, wanted)
        if load.donor_offset == 0:
            return pages
        if self._mover is None:
            raise ReadError("mismatch", "keys of another position")
        return self._mover.move(pages, start % block_size, tokens, -load.donor_offset)

    def _save(self, job: Save | str) -> None:
        if isinstance(job, str):
            self._drop(job)
            return
        evicted: list[str] = []
        try:
            if self._cache is None:
                raise ValueError("no cache to read")
            pages = self._cache.read(job.block_ids)
            record = Record(job.tokens, pages, job.namespace, self._cache.layout)
            evicted = self._store.write(job.donor_id, record)
            result = SaveResult(1, 1, "")
        except (OSError, ValueError, ReadError) as error:
            result = SaveResult(1, 0, str(error))
        except Exception as error:
            _log.exception("a save failed")
            result = SaveResult(1, 0, type(error).__name__)
        self._saves_done.put((job, result, evicted))
        self._any_done.set()

    def _drop(self, donor_id: str) -> None:
        try:
            self._store.remove(donor_id)
        except (OSError, ReadError):
            _log.warning("the share of a donor could not be removed", exc_info=True)


class _Lane:
    """Threads that take jobs from a bounded queue."""

    def __init__(
        self, name: str, threads: int, queue_max: int, work: Callable[[Any], None]
    ) -> None:
        self._work = work
        self._queue: queue.Queue[Any] = queue.Queue(queue_max)
        self._threads = [
            threading.Thread(target=self._run, name=f"kvatlas-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, job: Any) -> bool:
        """False at once when the queue is full."""
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Ends the threads after what is queued, and waits a moment for them."""
        for _ in self._threads:
            try:
                self._queue.put(None, timeout=CLOSE_S)
            except queue.Full:
                return
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            self._work(job)


def _failed(reason: str, detail: str, *, donor_lost: bool = False) -> LoadResult:
    return LoadResult(1, reason, detail, donor_lost)
