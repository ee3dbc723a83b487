"""The other side of the Brusselator: asdex on JAX, one thread, in the interpreter that has them.

Started by `benchmarks.jacobians`. It prepares, says what that took, then answers each line that it reads with the
time of some right-hand sides and Jacobians; what is timed is the processor time of this process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import asdex  # pyright: ignore[reportMissingImports]
import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

jax.config.update("jax_cpu_enable_async_dispatch", False)
CELLS, ALPHA = 100, 0.1


def right_hand_side(y: Any) -> Any:
    """The system of `examples.jacobians.brusselator`."""
    scale = ALPHA * (CELLS - 1) ** 2
    u, v = y.reshape(2, CELLS, CELLS)

    def laplace(a: Any) -> Any:
        return jnp.roll(a, 1, 0) + jnp.roll(a, -1, 0) + jnp.roll(a, 1, 1) + jnp.roll(a, -1, 1) - 4 * a

    reaction = u * u * v
    return jnp.stack(
        [1 + reaction - 4.4 * u + scale * laplace(u), 3.4 * u - reaction + scale * laplace(v)]
    ).reshape(-1)


def start() -> Any:
    """Where the system starts."""
    s = jnp.linspace(0, 1, CELLS)
    u, v = 22 * s * (1 - s) ** 1.5, 27 * s * (1 - s) ** 1.5
    return jnp.stack([jnp.broadcast_to(u, (CELLS, CELLS)).T, jnp.broadcast_to(v, (CELLS, CELLS))]).reshape(-1)


def main() -> None:
    """Prepare, then answer."""
    y = start()
    jax.jit(lambda y: y + 1)(y).block_until_ready()
    begun = time.process_time()
    jacobian = asdex.jacobian(right_hand_side, y)
    prepared = time.process_time()
    run, f = jax.jit(jacobian), jax.jit(right_hand_side)
    found = jax.block_until_ready(run(y))
    first = time.process_time()
    jax.block_until_ready(f(y))
    total = float(jnp.abs(found.data).sum())
    tell({"prepare": prepared - begun, "first": first - prepared, "places": int(found.nse), "sum": total})
    for _ in sys.stdin:
        tell({name: sample(call, y) for name, call in (("rhs", f), ("jacobian", run))})


def sample(call: Any, y: Any, seconds: float = 0.02) -> float:
    """Seconds a call, over so many of them."""
    jax.block_until_ready(call(y))
    count, begun = 0, time.process_time()
    while (taken := time.process_time() - begun) < seconds:
        for _ in range(5):
            jax.block_until_ready(call(y))
        count += 5
    return taken / count


def tell(what: dict[str, Any]) -> None:
    """One line to whoever started this."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
