"""The committed messages are what the .proto files make, and the calls are those of the service."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from google.protobuf.message import Message

from kvatlas import calls
from kvatlas.v1 import (
    admin_pb2,
    donors_pb2,
    events_pb2,
    leases_pb2,
    routing_pb2,
)

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
METHODS = {name: value for name, value in vars(calls).items() if isinstance(value, calls.Method)}


def test_the_committed_messages_are_current(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = not pathlib.Path(sys.executable).with_name("protoc").exists()
    if missing and os.environ.get("KVATLAS_REQUIRE_TOOLS") != "1":
        pytest.skip("protoc is not installed beside this Python: requirements-dev.txt")
    monkeypatch.syspath_prepend(str(PACKAGE / "tools"))
    import generate  # noqa: PLC0415

    generate.generate(tmp_path)
    made = {path.name: path.read_bytes() for path in (tmp_path / "kvatlas/v1").iterdir()}
    kept = PACKAGE / "src/kvatlas/v1"
    committed = {path.name: path.read_bytes() for path in kept.iterdir() if path.is_file()}
    assert sorted(made) == sorted(committed)
    stale = [name for name in made if made[name] != committed[name]]
    assert stale == [], "run tools/generate.py"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_reads_what_the_service_answers(name: str) -> None:
    path, parse = METHODS[name]
    _, service, method = path.split("/")
    files = (admin_pb2, donors_pb2, events_pb2, leases_pb2, routing_pb2)
    services = {
        one.full_name: one for file in files for one in file.DESCRIPTOR.services_by_name.values()
    }
    answer = services[service].methods_by_name[method].output_type
    parsed = parse(b"")
    assert isinstance(parsed, Message)
    assert parsed.DESCRIPTOR is answer
