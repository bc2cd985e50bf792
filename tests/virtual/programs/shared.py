"""Hands CUDA tensors to another process (`torch.multiprocessing`), which sends one back; prints what each saw."""

import torch
import torch.multiprocessing as mp

BYTES = 64 << 20


def work(inbox: "mp.Queue[torch.Tensor]", outbox: "mp.Queue[object]", done: "mp.Event") -> None:  # type: ignore[valid-type]
    given = inbox.get()
    again = inbox.get()
    own = torch.empty(BYTES // 2, dtype=torch.uint8, device="cuda")
    outbox.put(own)
    outbox.put((str(given.device), given.numel(), again.numel(), torch.cuda.memory_allocated()))
    done.wait()  # type: ignore[attr-defined]
    del given, again, own


def main() -> None:
    context = mp.get_context("spawn")
    inbox, outbox, done = context.Queue(), context.Queue(), context.Event()
    process = context.Process(target=work, args=(inbox, outbox, done))
    process.start()
    tensor = torch.zeros(BYTES, dtype=torch.uint8, device="cuda")
    inbox.put(tensor)
    inbox.put(tensor[: BYTES // 4])
    received = outbox.get()
    print(outbox.get())
    total = torch.cuda.mem_get_info()[1]
    used = total - torch.cuda.mem_get_info()[0]
    print((received.numel(), torch.cuda.memory_allocated(), used))
    del received
    done.set()
    process.join()
    print(process.exitcode)


if __name__ == "__main__":
    main()
