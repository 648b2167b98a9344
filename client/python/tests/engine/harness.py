"""What the engine tests share: a script is run by the engine's interpreter, its answer comes back.

The tests themselves run in any Python; only the scripts import vLLM. A script gets two paths: a
JSON file with what it shall do, and one to write its answer to.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE_DIR = HERE.parents[1] / "src"
PASSAGES = HERE.parents[3] / "examples" / "passages.jsonl.gz"

# Attention on a CPU wants a multiple of 32.
BLOCK_SIZE = 32
# A start of vLLM on a CPU takes 20 to 60 s.
SCRIPT_TIMEOUT_S = 900
LOG_TAIL_CHARS = 6000

# Everything a test needs lies on this machine; nothing shall be asked of the network.
ENVIRONMENT = {
    # With a connector vLLM keeps one more processor free, so that sums over another number of
    # threads would round otherwise; this way both keep one.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Engine:
    """An interpreter with vLLM, and a folder for what its scripts read and write."""

    python: str
    work_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        script: str | Path,
        spec: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        timeout_s: float = SCRIPT_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Runs `script` (a path, or a name beside this file) with `spec`; its JSON answer."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in self.work_dir.glob("*.spec.json"))
        spec_path = self.work_dir / f"{number}.spec.json"
        answer_path = self.work_dir / f"{number}.answer.json"
        log_path = self.work_dir / f"{number}.log"
        spec_path.write_text(json.dumps(spec))
        with log_path.open("wb") as log:
            code = subprocess.run(
                [self.python, str(HERE / script), str(spec_path), str(answer_path)],
                env={**script_environment(), **self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            ).returncode
        if code != 0 or not answer_path.exists():
            tail = log_path.read_text(errors="replace")[-LOG_TAIL_CHARS:]
            raise AssertionError(f"{script} ended with {code}; {log_path} ends:\n{tail}")
        answer: dict[str, Any] = json.loads(answer_path.read_text())
        return answer

    def generate(
        self,
        model: Path,
        steps: list[dict[str, Any]],
        kv_transfer_config: Mapping[str, Any] | None = None,
        llm: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Generated:
        """Plays `steps` (see run_prompts.py) in a fresh vLLM."""
        audit = None
        if kv_transfer_config is not None:
            extra = dict(kv_transfer_config.get("kv_connector_extra_config", {}))
            audit = Path(extra.setdefault("audit_path", str(self._fresh("audit.jsonl"))))
            kv_transfer_config = {**kv_transfer_config, "kv_connector_extra_config": extra}
        spec = {
            "model": str(model),
            "llm": {**default_llm(), **(llm or {})},
            "kv_transfer_config": kv_transfer_config,
            "steps": steps,
        }
        answer = self.run("run_prompts.py", spec, environment)
        lines = audit_lines(audit) if audit is not None else []
        return Generated(answer["results"], lines)

    def _fresh(self, suffix: str) -> Path:
        self.work_dir.mkdir(parents=True, exist_ok=True)
        return self.work_dir / f"{sum(1 for _ in self.work_dir.iterdir())}.{suffix}"


@dataclass(frozen=True)
class Generated:
    """What the engine said, in order, and what its connector wrote down."""

    results: list[dict[str, Any]]
    audit: list[dict[str, Any]]

    def outputs(self) -> list[list[int]]:
        """The output tokens of every prompt."""
        return [result["tokens"] for result in self.results]


def script_environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(SOURCE_DIR), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": path}


def default_llm() -> dict[str, Any]:
    return {
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 32,
        "seed": 0,
    }


def audit_lines(path: Path) -> list[dict[str, Any]]:
    """Every line that a connector wrote; none when it wrote nothing."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def passages() -> list[str]:
    """The bundled passages, of public-domain addresses, in order."""
    with gzip.open(PASSAGES, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]
