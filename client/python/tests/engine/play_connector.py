"""Plays a story with KvatlasConnector in a real vLLM: play_connector.py SPEC.json ANSWER.json

The engine's core runs in this process, so that a step can reach its scheduler. The spec holds
`model`, `llm`, `extra` (the connector's extra config, or null for none), `binary` and `service`
(the service, which is started here and can be killed, and its arguments), `lease_ttl_ms` and
`steps`, each named by its `do`:
  ask      `prompts` of token ids, one after the other or `together`; `max_tokens`; `chapter`, which
           results are found under
  reset    the engine's own prefix cache
  settle   until the service holds no lease and at least `donors`
  damage   every donor file in `folder`, or those of one `worker`: `how` is delete, truncate or flip
  before_load   from now on, between advertising and loading: `how` is wait (for `seconds`), kill
           (the service) or nothing
  kill, start   the service
  slow     the service answers `seconds` late
  abort    asks `prompts`, and aborts them after so many `steps` of the engine
  move     the donor that is `head` + a document to where the donor that begins with the document
           has it, and compares the first layer's KV, which depends on tokens and positions alone
  restart_under_load   asks `prompts`, and kills the service and starts it again meanwhile
The answer holds `results` by chapter, `moved` (largest difference, largest value), `left` (the
service's leases and donors), `preemptions`, `back_s` (when the service was there again), and
`times` (what each of the connector's calls on the scheduler's thread took, in microseconds, by
chapter).
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import numpy as np
import torch
from safetensors.numpy import load_file
from slow_proxy import SlowProxy
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group

from kvatlas import Client
from kvatlas.vllm import nominate

SETTLE_S_MAX = 60.0
PAUSE_S = 0.02
TIMED = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    nominate.LEASE_TTL_MS = spec["lease_ttl_ms"]
    with tempfile.TemporaryDirectory(prefix="kvatlas-") as folder:
        service = Service(Path(folder), spec["binary"], spec["service"])
        story = Story(spec, service)
        for step in spec["steps"]:
            arguments = dict(step)
            getattr(story, arguments.pop("do"))(**arguments)
        left = story.left() if spec["extra"] is not None else {}
        answer = {
            "results": story.results,
            "left": left,
            "times": story.times,
            "moved": story.moved,
            "back_s": story.back_s,
            "preemptions": story.preemptions(),
        }
        story.close()
        service.kill()
    Path(sys.argv[2]).write_text(json.dumps(answer))


class Service:
    """`kvatlas serve`, behind a proxy that can make it slow."""

    def __init__(self, folder: Path, binary: str, arguments: list[str]) -> None:
        self._socket = folder / "service.sock"
        self.address = f"unix:{folder / 'proxy.sock'}"
        self._command = [binary, "serve", "--listen", f"unix:{self._socket}"]
        self._command += ["--http-listen", "127.0.0.1:0", "--data-dir", str(folder / "data")]
        self._command += arguments or ["--mode", "materialize"]
        self.proxy = SlowProxy(folder / "proxy.sock", self._socket)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        if self._process is not None:
            return
        self._socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def status(self) -> Any:
        with Client(f"unix:{self._socket}") as client:
            return client.status()


class Story:
    """The engine, and what it said. Its public methods are the steps."""

    def __init__(self, spec: Mapping[str, Any], service: Service) -> None:
        self._service = service
        self.results: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
        self.times: dict[str, dict[str, list[float]]] = {}
        self._chapter_times: dict[str, list[float]] = {}
        self.moved: list[tuple[float, float]] = []
        self.back_s = 0.0
        self._between: Callable[[], object] = lambda: None
        arguments = dict(spec["llm"])
        if spec["extra"] is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": "KvatlasConnector",
                "kv_connector_module_path": "kvatlas.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"address": service.address, **spec["extra"]},
            }
        self._llm = LLM(model=spec["model"], disable_log_stats=False, **arguments)
        if spec["extra"] is not None:
            self._watch_connector()

    def ask(
        self,
        prompts: list[list[int]],
        chapter: str,
        together: bool = False,
        max_tokens: int = 8,
    ) -> None:
        self._chapter_times = self.times.setdefault(chapter, {name: [] for name in TIMED})
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        for batch in [inputs] if together else [[one] for one in inputs]:
            for output in self._llm.generate(batch, sampling, use_tqdm=False):
                self.results[chapter].append(
                    {
                        "request_id": output.request_id,
                        "prompt_tokens": len(output.prompt_token_ids),
                        "cached_tokens": output.num_cached_tokens,
                        "tokens": list(output.outputs[0].token_ids),
                        "first_token_s": getattr(output.metrics, "first_token_latency", None),
                    }
                )

    def reset(self) -> None:
        """Once no block is held any more: a save may still be going on."""
        self._until(self._llm.reset_prefix_cache)

    def settle(self, donors: int = 0) -> None:
        def settled() -> bool:
            left = self.left()
            return left["donors"] >= donors and left["leases"] == 0

        self._until(settled)

    def damage(self, how: str, folder: str, worker: str = "*") -> None:
        files = list(Path(folder).rglob(f"{worker}.safetensors"))
        if not files:
            raise RuntimeError("no donor file to damage")
        for path in files:
            data = bytearray(path.read_bytes())
            if how == "delete":
                path.unlink()
            elif how == "truncate":
                path.write_bytes(data[: len(data) * 2 // 3])
            elif how == "flip":
                # In the KV, which is the file's last part.
                data[len(data) // 2] ^= 0x10
                path.write_bytes(data)
            else:
                raise ValueError(how)

    def before_load(self, how: str, seconds: float = 0.0) -> None:
        between: dict[str, Callable[[], object]] = {
            "wait": lambda: time.sleep(seconds),
            "kill": self._service.kill,
            "nothing": lambda: None,
        }
        self._between = between[how]

    def kill(self) -> None:
        self._service.kill()

    def start(self) -> None:
        self._service.start()

    def slow(self, seconds: float) -> None:
        self._service.proxy.delay_s = seconds

    def abort(self, prompts: list[list[int]], steps: int) -> None:
        engine = self._llm.llm_engine
        sampling = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
        names = [f"aborted-{steps}-{number}" for number in range(len(prompts))]
        for name, prompt in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        for _ in range(steps):
            engine.step()
        engine.abort_request(names)
        if engine.has_unfinished_requests():
            raise RuntimeError("aborted requests go on")

    def move(self, folder: str, head: list[int], tokens: int) -> None:
        files = [load_file(path) for path in Path(folder).rglob("*.safetensors")]
        (ahead,) = (one for one in files if list(one["tokens"][: len(head)]) == head)
        document = ahead["tokens"][len(head) : len(head) + tokens]
        (plain,) = (one for one in files if np.array_equal(one["tokens"][:tokens], document))
        mover = get_kv_transfer_group()._worker._mover
        moved = mover.move(ahead["pages"], len(head), tokens, -len(head))
        blocks = len(moved)
        first = slice(0, 2 * mover._layers[0][1].keys.size * 2)
        both = [
            torch.from_numpy(np.ascontiguousarray(pages[:blocks, first])).view(torch.bfloat16)
            for pages in (moved, plain["pages"])
        ]
        difference = (both[0].float() - both[1].float()).abs().max()
        self.moved.append((float(difference), float(both[1].float().abs().max())))

    def restart_under_load(self, prompts: list[list[int]], chapter: str) -> None:
        killed, back = threading.Event(), threading.Event()

        def restart() -> None:
            time.sleep(1.0)
            self._service.kill()
            killed.set()
            time.sleep(1.0)
            self._service.start()
            self.back_s = time.time()
            back.set()

        thread = threading.Thread(target=restart)
        thread.start()
        rounds = 0
        while not back.is_set() or rounds < 2:
            self.ask(prompts, chapter)
            rounds += back.is_set()
        thread.join()

    def left(self) -> dict[str, int]:
        """What the service holds."""
        status = self._service.status()
        return {"leases": status.leases_held, "donors": status.donors}

    def preemptions(self) -> int:
        metrics = self._llm.get_metrics()
        return sum(int(one.value) for one in metrics if one.name == "vllm:num_preemptions")

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()

    def _until(self, true: Callable[[], bool]) -> None:
        """The engine goes on meanwhile: its workers may have something to say."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {SETTLE_S_MAX} s; {self.left()}")
            self._llm.llm_engine.step()
            time.sleep(PAUSE_S)

    def _watch_connector(self) -> None:
        connector = self._llm.llm_engine.engine_core.engine_core.scheduler.get_kv_connector()
        for name in TIMED:
            setattr(connector, name, self._timed(name, getattr(connector, name)))
        build = connector.build_connector_meta

        def interrupted(scheduler_output: Any) -> Any:
            plan = build(scheduler_output)
            if plan.loads:
                self._between()
            return plan

        connector.build_connector_meta = interrupted

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter()
            answer = call(*arguments)
            took = (time.perf_counter() - begun) * 1e6
            self._chapter_times.setdefault(name, []).append(round(took, 1))
            return answer

        return timed


if __name__ == "__main__":
    main()
