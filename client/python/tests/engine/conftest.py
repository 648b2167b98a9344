"""Fixtures of the tests that need a real vLLM: set KVATLAS_ENGINE_PYTHON to its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import HERE, Engine, passages, script_environment

ENGINE_PYTHON = "KVATLAS_ENGINE_PYTHON"


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The interpreter with vLLM; without one the test says that it was skipped."""
    python = os.environ.get(ENGINE_PYTHON)
    if not python:
        pytest.skip(f"{ENGINE_PYTHON} names no interpreter with vLLM")
    return python


@pytest.fixture(scope="session")
def model(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a tokenizer, made of the bundled passages."""
    folder = tmp_path_factory.mktemp("model")
    text_file = folder / "text.txt"
    text_file.write_text("\n".join(passages()))
    subprocess.run(
        [engine_python, str(HERE / "make_model.py"), str(folder), str(text_file)],
        env=script_environment(),
        check=True,
    )
    return folder


@pytest.fixture
def engine(engine_python: str, tmp_path: Path) -> Engine:
    return Engine(engine_python, tmp_path / "engine")
