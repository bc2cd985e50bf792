"""Graphs, events, tools, other processes: by name, functions without arguments."""

from __future__ import annotations

import ctypes
import tempfile

import torch
from layer_ops import attention
from op_cases import CUDA, Case, case, rand
from torch import nn
from torch.nn.attention import SDPBackend

# Devices, graphs, streams, tools -------------------------------------------------------------------------------------


def _graphed(function: Case) -> None:
    """Capture and replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    graph.replay()


@case
def graph_of_fft() -> None:
    x = rand(4, 64)
    _graphed(lambda: torch.fft.irfft(torch.fft.rfft(x)))


@case
def graph_of_attention() -> None:
    _graphed(lambda: attention(SDPBackend.FLASH_ATTENTION, torch.bfloat16, is_causal=True))


@case
def graph_of_run_time_kernels() -> None:
    x = rand(4, dtype=torch.complex64)
    _graphed(lambda: x.abs() * torch.special.i0e(x.real))


@case
def graph_of_linear_algebra() -> None:
    x = torch.eye(8, device=CUDA).expand(4, 8, 8).contiguous()
    _graphed(lambda: torch.linalg.cholesky_ex(x))


@case
def graph_of_a_step() -> None:
    layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.1), nn.GELU()).cuda()
    x = rand(2, 3, 16, 16)
    _graphed(lambda: layer(x).sum().backward())


@case
def graph_with_a_read() -> None:
    x = rand(4)
    _graphed(lambda: x.sum().item())


@case
def graph_debug_dump() -> None:
    graph, x = torch.cuda.CUDAGraph(keep_graph=True), rand(4)
    with torch.cuda.graph(graph):
        x + x
    graph.raw_cuda_graph()
    graph.enable_debug_mode()
    with tempfile.TemporaryDirectory() as folder:
        graph.debug_dump(f"{folder}/graph.dot")


@case
def events() -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    rand(8) @ rand(8)
    end.record()
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) >= 0
    torch.cuda.Event(interprocess=True).record()


@case
def event_of_another_process() -> None:
    event = torch.cuda.Event(interprocess=True)
    event.record()
    event.ipc_handle()


@case
def marks() -> None:
    torch.cuda.nvtx.range_push("a")
    torch.cuda.nvtx.mark("b")
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("c"))
    with torch.autograd.profiler.emit_nvtx():
        rand(4).sum()


@case
def runtime_calls() -> None:
    runtime = torch.cuda.cudart()
    assert runtime is not None
    runtime.cudaMemGetInfo(0), runtime.cudaProfilerStart(), runtime.cudaProfilerStop()
    host = torch.zeros(1 << 12)
    runtime.cudaHostRegister(host.data_ptr(), 1 << 12, 0), runtime.cudaHostUnregister(host.data_ptr())
    stream = ctypes.c_void_p()
    torch.cuda.check_error(runtime.cudaStreamCreate(ctypes.addressof(stream)))
    torch.cuda.ExternalStream(stream.value or 0).synchronize()
    torch.cuda.check_error(runtime.cudaStreamDestroy(stream.value or 0))


@case
def profiler() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True) as profile:
        (rand(8, 8) @ rand(8, 8)).relu().sum()
    profile.key_averages().table()


@case
def card_status() -> None:
    torch.cuda.utilization(), torch.cuda.memory_usage(), torch.cuda.temperature(), torch.cuda.power_draw()
    torch.cuda.clock_rate(), torch.cuda.list_gpu_processes(), torch.cuda.device_memory_used()


@case
def memory_pools() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = rand(1 << 20)
    del held, pool
    torch.cuda.memory.empty_cache()
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(1 << 20))


@case
def called_by_address() -> None:
    """As bitsandbytes does: a library of one's own is given addresses and the stream."""
    runtime = ctypes.CDLL(None)
    x = rand(64)
    room = torch.empty(64, pin_memory=True)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    size = ctypes.c_size_t(256)
    address, host = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(room.data_ptr())
    assert runtime.cudaMemcpyAsync(host, address, size, 2, stream) == 0
    assert runtime.cudaMemsetAsync(address, 0, size, stream) == 0
    managed = ctypes.c_void_p()
    assert runtime.cudaMallocManaged(ctypes.byref(managed), ctypes.c_size_t(1 << 20), 1) == 0
    assert runtime.cudaMemPrefetchAsync(managed, size, 0, stream) == 0
    assert runtime.cudaFree(managed) == 0


@case
def array_interface() -> None:
    x = rand(4)
    torch.as_tensor(x, device=CUDA)
    assert torch.utils.dlpack.from_dlpack(x).data_ptr() == x.data_ptr()
    assert x.__cuda_array_interface__["data"][0] == x.data_ptr()


@case
def green_contexts() -> None:
    torch.cuda.green_contexts.GreenContext.create(num_sms=8, device_id=0)


@case
def to_another_process() -> None:
    from torch.multiprocessing.reductions import reduce_tensor

    rebuild, arguments = reduce_tensor(rand(8))
    assert rebuild is not None
    assert arguments
