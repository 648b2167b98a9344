"""Baking priors. What needs torch runs in this interpreter or in that of KVATLAS_ENGINE_PYTHON."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import WORKSPACE, Server

import kvatlas

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
CHECKS = re.findall(r"^def (check_\w+)", (HERE / "bake_checks.py").read_text(), re.MULTILINE)
ALGORITHMS = ("kri-d-kv-sum", "kri-a", "kri-g")
RUN_S_MAX = 600

# Prints the four best blocks of a prior, by the mean over layers and heads.
BEST_FOUR = """
import sys, torch
pooled = torch.load(sys.argv[1])["block_affinities"].double().mean((0, 1)).tolist()
print(sorted(sorted(range(len(pooled)), key=lambda block: -pooled[block])[:4]))
"""


@pytest.fixture(scope="session")
def torch_python() -> str:
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return sys.executable
    python = os.environ.get("KVATLAS_ENGINE_PYTHON")
    if not python:
        pytest.skip("neither torch here nor KVATLAS_ENGINE_PYTHON")
    return python


@pytest.fixture(scope="session")
def problems(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    answer = tmp_path_factory.mktemp("checks") / "answer.json"
    run(torch_python, str(HERE / "bake_checks.py"), str(answer))
    found: dict[str, str | None] = json.loads(answer.read_text())
    return found


def run(*command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("name", CHECKS)
def test_scores(name: str, problems: dict[str, str | None]) -> None:
    assert problems[name] is None, problems[name]


def test_bake_put_and_sweep(torch_python: str, server: Server, tmp_path: pathlib.Path) -> None:
    text = tmp_path / "prefix.txt"
    with gzip.open(WORKSPACE / "examples/passages.jsonl.gz", "rt") as lines:
        text.write_text(json.loads(next(lines))["text"])
    model = tmp_path / "model"
    run(torch_python, str(HERE / "engine/make_model.py"), str(model), str(text))
    command = f"--model {model} --text {text} --prefix-hash a/b --block-size 8 --k 4 1000"
    policies = ["--policies", "top-k", "A1R2", "recency", "per-head"]
    where = ["--address", server.address, "--out", str(tmp_path / "out")]
    done = run(torch_python, "-m", "kvatlas.bake", *command.split(), *policies, *where)

    with kvatlas.Client(server.address, lookup_timeout_s=10.0) as client:
        for name in ALGORITHMS:
            path = tmp_path / "out" / f"a_b_{name.replace('-', '_')}.pt"
            best = json.loads(run(torch_python, "-c", BEST_FOUR, str(path)).stdout)
            manifest = client.get_manifest("a/b", k=4, algorithm=name)
            assert isinstance(manifest, kvatlas.Manifest), manifest
            assert list(manifest.block_indices) == best
            assert manifest.algorithm == name

    lines = done.stdout.splitlines()
    rows = lines[next(i for i, line in enumerate(lines) if line.startswith("K ")) + 1 :]
    # Three policies with each prior and one without, at each K.
    assert len(rows) == 2 * (3 * 3 + 1)
    cells = [re.split(r"\s{2,}", row) for row in rows]
    measured = [row for row in cells if row[1] != "per-head"]
    assert all(float(row[3]) > 0 for row in measured if row[0] == "4")
    assert all(float(row[3]) == 0 for row in measured if row[0] == "1000")
    assert {row[2] for row in measured} == {*ALGORITHMS, "-"}
    assert {row[3] for row in cells if row[1] == "per-head"} == {"not measured: heads differ"}


def test_help_needs_no_torch() -> None:
    told = run(sys.executable, "-m", "kvatlas.bake", "--help").stdout
    for name in ALGORITHMS:
        assert name in told
    assert "example" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--model m --prefix-hash p", "one of the arguments --text --tokens is required"),
        ("--model m --prefix-hash p --text t --algorithms kri-x", "invalid choice: 'kri-x'"),
        ("--model m --prefix-hash p --text t --block-size 0", "invalid count value: '0'"),
        ("--model m --prefix-hash p --text t --repair xa25", "invalid repair value: 'xa25'"),
    ],
)
def test_a_wrong_command_is_told(arguments: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvatlas.bake", *arguments.split()],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert told in done.stderr
