"""Runs prompts through a real vLLM: run_prompts.py SPEC.json ANSWER.json

The spec holds `model`, `llm` (arguments of vllm.LLM), `kv_transfer_config` or null, and `steps`:
  {"prompts": [text or token ids, ...], "max_tokens": 8}   one batch, greedy
  {"reset_prefix_cache": true}
  {"await_donors": 1}    until the service at KVATLAS_ADDRESS holds that many: donors are
                         registered beside the engine, not before its answer
The answer holds one result a prompt: prompt_tokens, cached_tokens, tokens, seconds_to_first_token.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

from kvatlas import Client

AWAIT_S_MAX = 30.0
AWAIT_PAUSE_S = 0.02


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    llm = build_llm(spec)
    results = [result for step in spec["steps"] for result in play(llm, step)]
    close_llm(llm)
    Path(sys.argv[2]).write_text(json.dumps({"results": results}))


def build_llm(spec: Mapping[str, Any]) -> LLM:
    arguments = dict(spec["llm"])
    if spec["kv_transfer_config"] is not None:
        arguments["kv_transfer_config"] = spec["kv_transfer_config"]
    return LLM(model=spec["model"], disable_log_stats=False, **arguments)


def play(llm: LLM, step: Mapping[str, Any]) -> list[dict[str, Any]]:
    if step.get("reset_prefix_cache"):
        if not llm.reset_prefix_cache():
            raise RuntimeError("the engine did not reset its prefix cache")
        return []
    if "await_donors" in step:
        await_donors(step["await_donors"])
        return []
    return generate(llm, step["prompts"], step.get("max_tokens", 8))


def generate(llm: LLM, prompts: list[Any], max_tokens: int) -> list[dict[str, Any]]:
    """One batch, greedy."""
    inputs = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in prompts]
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return [result_of(output) for output in llm.generate(inputs, sampling, use_tqdm=False)]


def result_of(output: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": len(output.prompt_token_ids),
        "prompt_token_ids": list(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "tokens": list(output.outputs[0].token_ids),
        "seconds_to_first_token": getattr(output.metrics, "first_token_latency", None),
    }


def await_donors(count: int) -> None:
    client = Client()
    deadline = time.monotonic() + AWAIT_S_MAX
    while client.status().donors < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{client.status().donors} donors after {AWAIT_S_MAX} s")
        time.sleep(AWAIT_PAUSE_S)
    client.close()


def close_llm(llm: LLM) -> None:
    """Ends the engine, so that its connector has written its last line."""
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
