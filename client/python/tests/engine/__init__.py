"""Tests inside a real vLLM; a package, so that its conftest is not taken for the one above."""
