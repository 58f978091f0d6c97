"""What one call through the binding costs over the same call in C.

Runs on whatever library the usual search finds; for figures without a device:

    CACHEFW_ASCENDCL=simulator python benchmarks/call_cost.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cachefw_ascendcl as acl
import cffi
import numpy as np

CALLS = 200_000
ROUNDS = 9

# The same function, found the same way, called in a loop.
LOOP = """
#include <stdint.h>
#include <time.h>
double loop(void *function, long calls)
{
    int (*volatile get)(int32_t *) = (int (*)(int32_t *))function;
    struct timespec begin, end;
    int32_t device;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (calls-- > 0) {
        get(&device);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
}
"""


def c_loop() -> Callable[[Any, int], float]:
    """The loop, compiled."""
    folder = Path(tempfile.mkdtemp())
    (folder / "loop.c").write_text(LOOP)
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(folder / "loop.so"), str(folder / "loop.c")]
    subprocess.run(command, check=True)  # noqa: S603
    ffi = cffi.FFI()
    ffi.cdef("double loop(void *function, long calls);")
    library = ffi.dlopen(str(folder / "loop.so"))
    return lambda function, calls: library.loop(ffi.cast("void *", int(acl.ffi.cast("uintptr_t", function))), calls)


def timed(work: Callable[[], None], calls: int) -> float:
    """Nanoseconds per call; `work` makes `calls` of them."""
    begin = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begin) / calls


def main() -> None:
    """Print the medians."""
    with acl.Runtime() as runtime, runtime.device() as device, device.stream() as stream:
        acl.check(acl.lib.cfw_aclrtSetCurrentContext(device.context), "aclrtSetCurrentContext")
        get, out, native = acl.lib.cfw_aclrtGetDevice, acl.ffi.new("int32_t *"), c_loop()
        function = acl.lib.cfw_acl_lookup(b"aclrtGetDevice")
        empty = np.zeros(0, dtype=np.uint64)
        copies = acl.Copies(stream, empty, empty, empty, acl.CopyKind.DEVICE_TO_DEVICE)

        def nothing() -> None:
            for _ in range(CALLS):
                pass

        def direct() -> None:
            for _ in range(CALLS):
                get(out)

        def checked() -> None:
            for _ in range(CALLS):
                acl.check(get(out), "aclrtGetDevice")

        def bound() -> None:
            for _ in range(CALLS):
                with device.bound():
                    pass

        def post() -> None:
            for _ in range(CALLS):
                copies.post()

        rows: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            base = timed(nothing, CALLS)
            rows.setdefault("C loop", []).append(native(function, CALLS) / CALLS)
            for name, work in (
                ("lib call", direct),
                ("lib call and check()", checked),
                ("entering and leaving a context", bound),
                ("post of an empty batch", post),
            ):
                rows.setdefault(name, []).append(timed(work, CALLS) - base)
        medians = {name: round(statistics.median(values), 1) for name, values in rows.items()}
        report = {
            "library": str(runtime.library),
            "simulated": runtime.library.is_simulator,
            "nanoseconds": medians,
            "lib call over C, microseconds": round((medians["lib call"] - medians["C loop"]) / 1000, 3),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
