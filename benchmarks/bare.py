"""The bare onnxruntime loop: no server, no queue, one thread; the bound that nothing can beat.

Run as a process of its own, ``python -m benchmarks.bare MODEL BATCH_SIZE SECONDS``, so that the
benchmark's memory and threads do not disturb it. Prints one line of JSON.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import onnxruntime

from benchmarks import model


def loop(path: str, batch_size: int, seconds: float) -> dict[str, float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {model.INPUT: model.example(batch_size)}
    (response,) = session.run(None, feed)
    if not np.allclose(response, model.expected_response(feed[model.INPUT]), atol=1e-4):
        raise SystemExit("the bare loop's response is wrong")
    _spin(lambda: session.run(None, feed), seconds / 5)
    cpu_before = time.process_time()
    times_s = _spin(lambda: session.run(None, feed), seconds)
    cpu_s = time.process_time() - cpu_before
    requests = len(times_s) * batch_size
    p50, p99 = np.percentile(times_s, [50, 99]) * 1e6
    return {
        "requests": requests,
        "infer_per_s": requests / sum(times_s),
        "p50_us": float(p50),
        "p99_us": float(p99),
        "cpu_us": cpu_s / requests * 1e6,
    }


def _spin(call: Callable[[], object], seconds: float) -> list[float]:
    times_s, now = [], time.perf_counter()
    end = now + seconds
    while now < end:
        call()
        after = time.perf_counter()
        times_s.append(after - now)
        now = after
    return times_s


if __name__ == "__main__":
    print(json.dumps(loop(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
