"""Torch caches of every form, in the engine's own torch."""

from __future__ import annotations

from harness import Engine


def test_pages_are_read_from_and_written_to_the_right_blocks(engine: Engine) -> None:
    checked = engine.run("check_torch_cache.py", {})["checked"]
    assert len(checked) == 7
    assert checked.count("refused") == 2
