"""Makes src/kvatlas/v1 from the .proto files: `python tools/generate.py [FOLDER]`.

Protoc is pinned to a release of 2024 whose code asks for no particular protobuf runtime, so that
one set of files runs under every runtime that engines ship (4.25 to 7). Only messages are
generated; the calls themselves are a table in kvatlas/calls.py.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent.parent
PROTOS = HERE.parent.parent / "proto"
PROTOC_VERSION = "libprotoc 25.5"


def main(arguments: list[str]) -> int:
    folder = pathlib.Path(arguments[0]) if arguments else HERE / "src"
    generate(folder)
    return 0


def generate(folder: pathlib.Path) -> None:
    """Writes kvatlas/v1/*_pb2.py and .pyi below `folder`."""
    protoc = pathlib.Path(sys.executable).with_name("protoc")
    said = subprocess.run([protoc, "--version"], check=True, capture_output=True, text=True)
    if said.stdout.strip() != PROTOC_VERSION:
        raise SystemExit(f"needs {PROTOC_VERSION}, found {said.stdout.strip()}")
    folder.mkdir(parents=True, exist_ok=True)
    protos = sorted(str(proto.relative_to(PROTOS)) for proto in PROTOS.glob("kvatlas/v1/*.proto"))
    command = [protoc, f"-I{PROTOS}", f"--python_out={folder}", f"--pyi_out={folder}", *protos]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
