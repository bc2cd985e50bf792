"""Measures the scratch of PyTorch's generic reductions on random shapes, on the virtual GPU.

Run it on the virtual GPU: `gpumem run --gpu a100 tools/measure_reduce_scratch.py
SEED COUNT >> tests/data/reduce_scratch.csv`. Columns: gpu, op, dtype that the kernel reads, sizes, strides, reduced
dimensions, buffer bytes, semaphore bytes (`rust/gpumem-core/tests/scratch_reduce.rs` reads them).
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Callable, Iterator

import torch

Reduction = Callable[[torch.Tensor, list[int]], object]

OPS: dict[str, Reduction] = {
    "sum": lambda x, dims: x.sum(dims),
    "mean": lambda x, dims: x.mean(dims),
    "nansum": lambda x, dims: x.nansum(dims),
    "norm": lambda x, dims: torch.linalg.vector_norm(x, dim=dims),
    "normp": lambda x, dims: torch.linalg.vector_norm(x, 3, dim=dims),
    "amax": lambda x, dims: x.amax(dims),
    "std": lambda x, dims: x.std(dims),
    "var_mean": lambda x, dims: torch.var_mean(x, dims),
    "any": lambda x, dims: x.any(dims[0]),
    "all": lambda x, dims: x.all(dims[0]),
    "argmax": lambda x, dims: x.argmax(dims[0]),
    "max": lambda x, dims: x.max(dims[0]),
    "aminmax": lambda x, dims: torch.aminmax(x, dim=dims[0]),
}
ONE_DIMENSION = {"any", "all", "argmax", "max", "aminmax"}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
ELEMENTS = range(2000, 30_000_000)


def requested(call: Callable[[], object]) -> tuple[list[int], list[int]]:
    """Sizes of all requests of a call, and of its results."""
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=10_000)
    result = call()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    outputs = result if isinstance(result, tuple) else (result,)
    results = [output.numel() * output.element_size() for output in outputs if isinstance(output, torch.Tensor)]
    return [event["size"] for event in trace if event["action"] == "alloc"], results


def random_tensor(rng: random.Random, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of one to four dimensions: contiguous, permuted, channels_last, sliced or expanded."""
    while True:
        ndim = rng.randint(1, 4)
        widen = [rng.choice([1, 1, 3, 8]) if ndim < 3 else 1 for _ in range(ndim)]
        shape = [max(1, int(2 ** rng.uniform(0, 11))) * factor for factor in widen]
        if math.prod(shape) in ELEMENTS:
            break
    x = torch.empty(shape, device="cuda", dtype=dtype)
    kind = rng.choice(["contiguous", "contiguous", "permuted", "channels_last", "sliced", "expanded"])
    if kind == "permuted":
        return x.permute(rng.sample(range(ndim), ndim))
    if kind == "channels_last" and ndim == 4:
        return x.to(memory_format=torch.channels_last)
    if kind == "sliced":
        return x[..., : max(1, x.shape[-1] - rng.randint(0, 3))]
    if kind == "expanded":
        return x.unsqueeze(0).expand(rng.choice([2, 3, 8]), *x.shape)
    return x


def measurements(seed: int, count: int) -> Iterator[str]:
    """Lines of the table; calls whose requests are not results plus one pair of scratch buffers are left out."""
    rng = random.Random(seed)
    profile = os.environ["GPUMEM_VGPU_GPU"]
    while count:
        op, dtype = rng.choice([*OPS, *["sum"] * 8, "mean", "mean"]), rng.choice([*DTYPES, "f32", "f32", "bf16"])
        x = random_tensor(rng, DTYPES[dtype])
        dims = sorted(rng.sample(range(x.dim()), rng.randint(1, x.dim())))
        dims = dims[:1] if op in ONE_DIMENSION else dims
        sizes, results = requested(lambda op=op, x=x, dims=dims: OPS[op](x, dims))  # type: ignore[misc]
        if sizes[: len(results)] != results or len(sizes) - len(results) not in (0, 2):
            continue
        scratch = sizes[len(results) :] or [0, 0]
        reduced = "".join(str(int(dim in dims)) for dim in range(x.dim()))
        fields = ["x".join(map(str, x.shape)), "x".join(map(str, x.stride())), reduced, *map(str, scratch)]
        yield ",".join([profile, op, dtype, *fields])
        count -= 1


if __name__ == "__main__":
    for line in measurements(int(sys.argv[1]), int(sys.argv[2])):
        sys.stdout.write(line + "\n")
