"""Plays a story with KvatlasConnector in a real vLLM: play_connector.py SPEC.json ANSWER.json

The engine's core runs in this process, so that a step can reach its scheduler. The spec holds
`model`, `llm`, `extra` (the connector's extra config, or null for none), `service` (arguments of
`kvatlas serve`; it is started here and can be killed) and `steps`, each of one key:
  {"prompts": [token ids, ...], "max_tokens": 8}  one after the other; "together": true for a batch
  {"reset": true}          the engine's own prefix cache
  {"settle": donors}       until the service holds so many donors, and no lease
  {"damage": "delete" | "truncate" | "flip", "folder": path}   every donor file
  {"before_load": "wait" | "kill" | null, "seconds": s}        between advertising and loading
  {"kill": true} {"start": true}                               the service
  {"delay_s": 2.0}         by which the service answers late
  {"abort_after": steps, "prompts": [...]}        engine steps, then every request is aborted
The answer holds a list of results, one a prompt, and at the end the service's leases and donors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from slow_proxy import SlowProxy
from vllm import LLM, SamplingParams

from kvatlas import Client

SETTLE_S_MAX = 30.0
PAUSE_S = 0.02


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory(prefix="kvatlas-") as folder:
        service = Service(Path(folder), spec.get("service", []))
        story = Story(spec, service)
        for step in spec["steps"]:
            story.play(step)
        answer = {"results": story.results, "left": story.left(), "marks": story.marks}
        story.close()
        service.kill()
    Path(sys.argv[2]).write_text(json.dumps(answer))


class Service:
    """`kvatlas serve`, behind a proxy that can make it slow."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self._socket = folder / "service.sock"
        self.address = f"unix:{folder / 'proxy.sock'}"
        self._command = [os.environ["KVATLAS_BIN"], "serve", "--listen", f"unix:{self._socket}"]
        self._command += ["--http-listen", "127.0.0.1:0", "--data-dir", str(folder / "data")]
        self._command += ["--mode", "materialize", *arguments]
        self.proxy = SlowProxy(folder / "proxy.sock", self._socket)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
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
    """The engine, and what it said."""

    def __init__(self, spec: Mapping[str, Any], service: Service) -> None:
        self._service = service
        self.results: list[dict[str, Any]] = []
        self.marks: dict[str, float] = {}
        self._before_load: Mapping[str, Any] = {}
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
            self._between_advertising_and_loading()

    def play(self, step: Mapping[str, Any]) -> None:
        if "abort_after" in step:
            self._abort(step["prompts"], step["abort_after"])
        elif "prompts" in step:
            self._generate(step)
        elif "reset" in step:
            self._reset()
        elif "settle" in step:
            self._settle(step["settle"])
        elif "damage" in step:
            damage(step["damage"], Path(step["folder"]))
        elif "before_load" in step:
            self._before_load = step
        elif "kill" in step:
            self._service.kill()
        elif "start" in step:
            self._service.start()
        elif "delay_s" in step:
            self._service.proxy.delay_s = step["delay_s"]
        else:
            raise ValueError(f"an unknown step: {sorted(step)}")

    def left(self) -> dict[str, int]:
        """What the service holds."""
        status = self._service.status()
        return {"leases": status.leases_held, "donors": status.donors}

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()

    def _generate(self, step: Mapping[str, Any]) -> None:
        sampling = SamplingParams(
            max_tokens=step.get("max_tokens", 8), temperature=0, ignore_eos=True
        )
        inputs = [{"prompt_token_ids": prompt} for prompt in step["prompts"]]
        batches = [inputs] if step.get("together") else [[one] for one in inputs]
        for batch in batches:
            for output in self._llm.generate(batch, sampling, use_tqdm=False):
                self.results.append(
                    {
                        "prompt_tokens": len(output.prompt_token_ids),
                        "cached_tokens": output.num_cached_tokens,
                        "tokens": list(output.outputs[0].token_ids),
                        "first_token_s": getattr(output.metrics, "first_token_latency", None),
                    }
                )

    def _abort(self, prompts: list[list[int]], steps: int) -> None:
        engine = self._llm.llm_engine
        names = [f"abort-{number}" for number in range(len(prompts))]
        sampling = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
        for name, prompt in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        for _ in range(steps):
            engine.step()
        engine.abort_request(names)
        while engine.has_unfinished_requests():
            engine.step()

    def _reset(self) -> None:
        """Once no block is held any more: a save may still be going on."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while not self._llm.reset_prefix_cache():
            if time.monotonic() > deadline:
                raise TimeoutError("the engine did not reset its prefix cache")
            self._llm.llm_engine.step()

    def _settle(self, donors: int) -> None:
        """Donors are registered, and leases released, beside the engine."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while True:
            left = self.left()
            if left["donors"] >= donors and left["leases"] == 0:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {SETTLE_S_MAX} s: {left}")
            # Lets the engine take what its workers have to say.
            self._llm.llm_engine.step()
            time.sleep(PAUSE_S)

    def _between_advertising_and_loading(self) -> None:
        scheduler = self._llm.llm_engine.engine_core.engine_core.scheduler
        connector = scheduler.get_kv_connector()
        build = connector.build_connector_meta

        def interrupted(scheduler_output: Any) -> Any:
            plan = build(scheduler_output)
            if plan.loads and self._before_load.get("before_load"):
                if self._before_load["before_load"] == "kill":
                    self._service.kill()
                time.sleep(self._before_load.get("seconds", 0))
            return plan

        connector.build_connector_meta = interrupted


def damage(how: str, folder: Path) -> None:
    files = list(folder.rglob("*.safetensors"))
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


if __name__ == "__main__":
    main()
