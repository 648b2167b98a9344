#!/usr/bin/env python3
"""Makes the PTX and the table of registers from score.cu, or checks that they are up to date.

Needs no GPU, but two wheels:
    pip install -r requirements.txt

    make_ptx.py            writes score_sm80.ptx, score_sm90.ptx and registers.md
    make_ptx.py --check    compares instead, byte for byte; the table only where ptxas is there
"""

import argparse
import ctypes
import hashlib
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE / "score.cu"
ARCHITECTURES = (80, 90)
NVRTC_VERSION = (12, 9)
# NVRTC writes its own version, 8.8, which only drivers since 575 (CUDA 12.9) load. Nothing here is
# newer than 8.0 (CUDA 12.0, drivers since 525); ptxas refuses what the declared version lacks.
PTX_VERSION = "8.0"


class Nvrtc:
    """As much of NVRTC as it takes to make PTX."""

    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    def compile(self, source, name, architecture):
        program = ctypes.c_void_p()
        self._check(
            self.library.nvrtcCreateProgram(
                ctypes.byref(program), source, name.encode(), 0, None, None
            )
        )
        options = [f"--gpu-architecture=compute_{architecture}", "--std=c++17"]
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        result = self.library.nvrtcCompileProgram(program, len(options), array)
        log = self._text(program, "ProgramLog")
        if result != 0 or log.strip():
            sys.exit(f"compute_{architecture}:\n{log}")
        ptx = self._text(program, "PTX")
        self._check(self.library.nvrtcDestroyProgram(ctypes.byref(program)))
        return ptx

    def _text(self, program, what):
        size = ctypes.c_size_t()
        self._check(getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self.library, f"nvrtcGet{what}")(program, text))
        return text.value.decode()

    def _check(self, result):
        if result != 0:
            sys.exit(f"NVRTC: {self.library.nvrtcGetErrorString(result).decode()}")


def wheel_folder(package):
    try:
        spec = importlib.util.find_spec(f"nvidia.{package}")
    except ModuleNotFoundError:
        return None
    return pathlib.Path(next(iter(spec.submodule_search_locations))) if spec else None


def load_nvrtc():
    folder = wheel_folder("cuda_nvrtc")
    if folder is None:
        sys.exit("NVRTC is not installed: pip install -r requirements.txt")
    nvrtc = Nvrtc(folder / "lib" / "libnvrtc.so.12")
    if nvrtc.version() != NVRTC_VERSION:
        sys.exit(f"NVRTC is {nvrtc.version()}, wanted {NVRTC_VERSION}")
    return nvrtc


def make_ptx(nvrtc, architecture):
    source = SOURCE.read_bytes()
    ptx = nvrtc.compile(source, SOURCE.name, architecture)
    ptx, count = re.subn(r"(?m)^\.version \d+\.\d+$", f".version {PTX_VERSION}", ptx)
    assert count == 1, "one .version line"
    digest = hashlib.sha256(source).hexdigest()
    version = ".".join(str(part) for part in NVRTC_VERSION)
    header = (
        f"// score.cu sha256 {digest}\n"
        f"// Made by make_ptx.py with NVRTC {version}; not to be edited.\n"
    )
    body = [line.rstrip() for line in ptx.splitlines() if not line.startswith("//")]
    return header + "\n".join(body).strip("\n") + "\n"


def ptx_path(architecture):
    return HERE / f"score_sm{architecture}.ptx"


def measure(ptxas, architecture, ptx):
    """What ptxas says: (kernel, registers, shared bytes, spilled bytes) of each kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "score.ptx"
        path.write_text(ptx)
        command = [ptxas, "-v", f"-arch=sm_{architecture}", path, "-o", "/dev/null"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"ptxas, sm_{architecture}:\n{run.stderr}")
    rows = []
    for entry in run.stderr.split("Compiling entry function '")[1:]:

        def number(pattern):
            found = re.search(pattern, entry)
            return int(found.group(1)) if found else 0

        spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
        registers = number(r"Used (\d+) registers")
        rows.append((entry.split("'")[0], registers, number(r"(\d+) bytes smem"), spilled))
    return sorted(rows)


def block_threads():
    """Threads a block of each kernel, from the source's launch bounds."""
    text = SOURCE.read_text()
    bounds = dict(re.findall(r"constexpr u32 (\w+_THREADS) = (\d+);", text))
    kernels = re.findall(r"__launch_bounds__\((\w+)\)\n(\w+)\(", text)
    kernels += [("HEAD_THREADS", name) for name in re.findall(r"(?m)^HEAD_KERNEL\((\w+),", text)]
    return {name: int(bounds[bound]) for bound, name in kernels if bound in bounds}


def make_table(ptxas, ptx_of):
    threads = block_threads()
    # Registers and shared memory of a multiprocessor, and its threads.
    limits = {80: (65536, 164 * 1024, 2048), 90: (65536, 228 * 1024, 2048)}
    lines = [
        "# Registers, spills and shared memory",
        "",
        "What ptxas makes of the checked-in PTX; written by `make_ptx.py`. Resident warps: how many",
        "of a multiprocessor's 64 the registers and the shared memory leave room for.",
        "",
        "| kernel | target | registers | spilled bytes | shared bytes | threads a block "
        "| resident warps |",
        "|---|---|---|---|---|---|---|",
    ]
    for architecture in ARCHITECTURES:
        registers_all, shared_all, threads_all = limits[architecture]
        for name, registers, shared, spilled in measure(ptxas, architecture, ptx_of[architecture]):
            if spilled > 0:
                sys.exit(f"{name} spills {spilled} bytes on sm_{architecture}")
            size = threads[name]
            # Registers are given out to a warp in units of 256, shared memory with 1 KiB on top.
            warp_registers = -(-registers * 32 // 256) * 256
            blocks = min(
                registers_all // (warp_registers * size // 32),
                shared_all // (shared + 1024),
                threads_all // size,
            )
            lines.append(
                f"| {name} | sm_{architecture} | {registers} | {spilled} | {shared} "
                f"| {size} | {blocks * size // 32} |"
            )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()

    nvrtc = load_nvrtc()
    made = {architecture: make_ptx(nvrtc, architecture) for architecture in ARCHITECTURES}
    files = {ptx_path(architecture): ptx for architecture, ptx in made.items()}
    nvcc = wheel_folder("cuda_nvcc")
    if nvcc is not None:
        files[HERE / "registers.md"] = make_table(nvcc / "bin" / "ptxas", made)
    elif not arguments.check:
        sys.exit("ptxas is not installed: pip install -r requirements.txt")
    for path, text in files.items():
        if not arguments.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.name} is out of date: run make_ptx.py")
    print(f"{len(files)} files {'agree' if arguments.check else 'written'}")


if __name__ == "__main__":
    main()
