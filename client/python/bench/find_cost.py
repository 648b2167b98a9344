"""What a look-up costs from Python, against an empty call that carries the same bytes.

    flock LOCK python bench/find_cost.py --kvatlas target/release/kvatlas \\
        --loadtest target/release/kvatlas-loadtest

Both go through grpcio to a server of the same kind: the look-up to `kvatlas serve`, the empty call
to the load generator's echo (the call Take), which takes the very request that the look-up sends
and answers nothing. They take turns, so that the machine's moods hit both alike. The look-up is the
whole of `Client.find_donor`: packing, checking, the namespace in full, a search among the donors,
the answer read and checked. The empty call is grpcio's bare unary call of ready-made bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np

import kvatlas
from kvatlas import Client, Donor, Found, Miss, Namespace, Owner, calls

TAKE = "/kvatlas.loadtest.Echo/Take"
VOCABULARY = 30_000
SERVE = [
    "serve",
    "--listen",
    "127.0.0.1:0",
    "--http-listen",
    "127.0.0.1:0",
    "--mode",
    "materialize",
]
SKETCHES_BEHIND = "kvatlas_sketches_behind"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kvatlas", type=pathlib.Path, required=True)
    options.add_argument("--loadtest", type=pathlib.Path, required=True)
    options.add_argument("--tokens", type=int, default=8192)
    options.add_argument("--donors", type=int, default=1000)
    options.add_argument("--calls", type=int, default=2000, help="of each kind, in turns")
    options.add_argument("--bar", type=float, default=2.5)
    given = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        _server([given.kvatlas, *SERVE, "--data-dir", folder]) as ready,
        _server([given.loadtest, "echo-child"]) as echo,
        Client(ready["grpc"][0], lookup_timeout_s=1.0, control_timeout_s=60) as client,
        grpc.insecure_channel(echo["grpc"][0]) as channel,
    ):
        prompts = np.random.default_rng(7).integers(
            0, VOCABULARY, (given.donors, given.tokens), np.int64
        )
        _register(client, prompts)
        _wait_for_sketches(ready["http"])
        return _measure(client, channel, prompts, given)


def _measure(
    client: Client, channel: grpc.Channel, prompts: np.ndarray, given: argparse.Namespace
) -> int:
    namespace = _namespace()
    turn = iter(range(10**9))
    hit = lambda: prompts[next(turn) % given.donors]  # noqa: E731
    unseen = np.random.default_rng(8).integers(0, VOCABULARY, (256, given.tokens), np.int64)
    miss = lambda: unseen[next(turn) % len(unseen)]  # noqa: E731
    store = ("bench",)

    def find(tokens: np.ndarray) -> Found | Miss:
        return client.find_donor(tokens, namespace, holder="bench", readable_store_ids=store)

    ask = calls.find_donor(hit(), namespace, {"holder": "bench", "readable_store_ids": store})
    assert isinstance(ask, calls.Ask)
    # The echo reads it as a payload: its first field is one of bytes.
    payload = ask.request.SerializeToString()
    take = channel.unary_unary(TAKE)
    kinds: dict[str, Callable[[], object]] = {
        "empty call": lambda: take(payload, timeout=1.0),
        "find_donor, found": lambda: find(hit()),
        "find_donor, unseen": lambda: find(miss()),
    }
    assert isinstance(find(hit()), Found)
    assert isinstance(find(miss()), Miss)
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(given.calls):
        for name, call in kinds.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return _report(seconds, given, len(payload))


def _report(seconds: dict[str, list[float]], given: argparse.Namespace, size: int) -> int:
    base = statistics.median(seconds["empty call"])
    print(f"{given.tokens} tokens, {size} bytes, {given.donors} donors")
    print(f"{'call':<20} {'p50 us':>8} {'p99 us':>8} {'of empty, p50':>14}")
    for name, taken in seconds.items():
        p50, p99 = statistics.median(taken), statistics.quantiles(taken, n=100)[98]
        print(f"{name:<20} {p50 * 1e6:8.0f} {p99 * 1e6:8.0f} {p50 / base:14.2f}")
    ratio = statistics.median(seconds["find_donor, found"]) / base
    print(f"bar {given.bar}: {'reached' if ratio <= given.bar else 'MISSED'}")
    return 0 if ratio <= given.bar else 1


def _register(client: Client, prompts: np.ndarray) -> None:
    namespace, owner = _namespace(), Owner("bench")
    client.announce_owner(owner.worker_id, 1, ttl_ms=3_600_000)
    for number, tokens in enumerate(prompts):
        length = len(tokens)
        donor = Donor(f"d{number}", namespace, owner, 1, tokens, length, "host", "bench", length)
        client.register_donor(donor)


def _wait_for_sketches(http: str) -> None:
    """They are made in the background, and would be measured too."""
    behind = 1
    while behind:
        with urllib.request.urlopen(f"http://{http}/metrics") as page:
            lines = page.read().decode().splitlines()
        behind = sum(int(line.split()[-1]) for line in lines if line.startswith(SKETCHES_BEHIND))
        time.sleep(0.05)


def _namespace() -> Namespace:
    texts = "model tokenizer tokenization chat_template kv_layout attention_backend adapter"
    fields: dict[str, object] = dict.fromkeys(texts.split(), "bench")
    fields |= dict.fromkeys(("model_revision", "tokenizer_revision", "rope_scaling"), "none")
    fields |= dict.fromkeys(("dtype", "kv_cache_dtype"), "bfloat16")
    sizes = {"block_size": 16, "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    return Namespace.from_dict({**fields, **sizes, "tenant_key": kvatlas.tenant_key(None)})


@contextlib.contextmanager
def _server(command: list[object]) -> Iterator[dict[str, Any]]:
    """Yields what it says when it is ready."""
    process = subprocess.Popen(
        [str(part) for part in command],
        # The echo ends with its input.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    sys.exit(main())
