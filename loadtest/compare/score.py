"""Times float32 products with numpy and torch, for `kvatlas-loadtest score`.

    python3 score.py THREADS ROUNDS BATCHxROWSxWIDTHxCOLUMNS...

Each shape is a batch of matrices [ROWS, WIDTH] times [WIDTH, COLUMNS]; a batch of one with one
column is a matrix times a vector, and is computed as such. All shapes together are one round.
Prints one JSON object: the median of the rounds in milliseconds for each library, null where it is
not installed. OMP_NUM_THREADS and its like should say THREADS too: numpy has no other way to be
told.
"""

import importlib
import json
import statistics
import sys
import time

WARM_UP_ROUNDS = 3


def load(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def median_ms(one_round, rounds):
    times = []
    for _ in range(WARM_UP_ROUNDS + rounds):
        begun = time.perf_counter()
        one_round()
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times[WARM_UP_ROUNDS:])


def with_numpy(numpy, shapes, rounds):
    random = numpy.random.default_rng(1)

    def draw(*sizes):
        # Uniform is as good as normal here, and faster to draw.
        return random.random(sizes, dtype=numpy.float32)

    products = [(draw(b, r, w), draw(b, w, c)) for b, r, w, c in shapes]
    products = [squeezed(left, right) for left, right in products]
    answers = [left @ right for left, right in products]

    def one_round():
        for (left, right), answer in zip(products, answers):
            numpy.matmul(left, right, out=answer)

    return median_ms(one_round, rounds)


def with_torch(torch, shapes, rounds, threads):
    torch.set_num_threads(threads)
    products = [(torch.rand(b, r, w), torch.rand(b, w, c)) for b, r, w, c in shapes]
    products = [squeezed(left, right) for left, right in products]

    def one_round():
        for left, right in products:
            torch.matmul(left, right)

    with torch.inference_mode():
        return median_ms(one_round, rounds)


def squeezed(left, right):
    if left.shape[0] == 1 and right.shape[2] == 1:
        return left[0], right[0, :, 0]
    return left, right


def main():
    threads, rounds = int(sys.argv[1]), int(sys.argv[2])
    shapes = [tuple(map(int, text.split("x"))) for text in sys.argv[3:]]
    numpy, torch = load("numpy"), load("torch")
    result = {"numpy_ms_p50": None, "torch_ms_p50": None}
    if numpy is not None:
        result["numpy_ms_p50"] = with_numpy(numpy, shapes, rounds)
    if torch is not None:
        result["torch_ms_p50"] = with_torch(torch, shapes, rounds, threads)
    print(json.dumps(result))


main()
