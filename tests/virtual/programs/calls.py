"""Makes CUDA calls for whoever writes lines to its standard input, one answer a line. It needs no PyTorch.

`take DEVICE MIB`: status of cudaMalloc. `give`: status of cudaFree of the last one. `info DEVICE`: status, free and all
MiB of cudaMemGetInfo. `nvml DEVICE`: MiB in use as NVML says. `processes DEVICE ROOM`: status of NVML's list, how many
processes there are, and MiB of this one and of all that found room. `buses`: the bus numbers of the devices that CUDA
shows, in order, or the status. `fork COMMAND`: the answer of a forked process. `set NAME VALUE`: an environment
variable.
"""

import ctypes
import os
import sys

MIB = 1 << 20
cuda = ctypes.CDLL(None)
taken: list[ctypes.c_uint64] = []


def take(device: str, mib: str) -> object:
    status = cuda.cudaSetDevice(int(device))
    if status == 0:
        taken.append(ctypes.c_uint64())
        status = cuda.cudaMalloc(ctypes.byref(taken[-1]), ctypes.c_size_t(int(mib) * MIB))
    return status


def give() -> object:
    return cuda.cudaFree(taken.pop())


def info(device: str) -> object:
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    cuda.cudaSetDevice(int(device))
    status = cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    return status, free.value // MIB, total.value // MIB


def nvml(device: str) -> object:
    handle, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    cuda.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(device)), ctypes.byref(handle))
    cuda.nvmlDeviceGetMemoryInfo(handle, memory)
    return memory[2] // MIB


def processes(device: str, room: str) -> object:
    handle, count = ctypes.c_void_p(), ctypes.c_uint(int(room))
    cuda.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(device)), ctypes.byref(handle))
    listed = (ctypes.c_uint64 * (3 * max(1, int(room))))()
    status = cuda.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), listed)
    # A process's number has 32 bits, and padding behind it.
    found = {
        listed[3 * index] & 0xFFFFFFFF: listed[3 * index + 1] // MIB for index in range(min(count.value, int(room)))
    }
    return status, count.value, found.get(os.getpid(), 0), sorted(found.values())


def buses() -> object:
    count = ctypes.c_int()
    status = cuda.cudaGetDeviceCount(ctypes.byref(count))
    if status != 0:
        return status
    text = ctypes.create_string_buffer(16)
    found = []
    for device in range(count.value):
        cuda.cudaDeviceGetPCIBusId(text, 16, device)
        found.append(int(text.value.split(b":")[1], 16))
    return found


def fork(*command: str) -> object:
    sys.stdout.flush()
    if os.fork() == 0:
        print(answer(list(command)), flush=True)
        os._exit(0)
    os.wait()
    return None


def set_(name: str, value: str = "") -> object:
    os.environ[name] = value
    return 0


def answer(words: list[str]) -> object:
    return globals()["set_" if words[0] == "set" else words[0]](*words[1:])


for line in sys.stdin:
    said = answer(line.split())
    if said is not None:
        print(said, flush=True)
