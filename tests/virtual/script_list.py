"""Programs in the shape of public training scripts, with the arguments they are run with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")


@dataclass(frozen=True)
class Script:
    """One way to run a program.

    Attributes:
        name: For people.
        command: The program and its arguments; the program's name has no folder.
        gpus: How many cards it gets.
        torchrun: Whether torchrun starts it, once for each card.
        variables: Environment variables.
        options: Options of `gpumem run`.
    """

    name: str
    command: tuple[str, ...]
    gpus: int = 1
    torchrun: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def program(self) -> list[str]:
        """What stands after the options of `gpumem run`."""
        started = [str(PROGRAMS / self.command[0]), *self.command[1:]]
        if self.torchrun:
            return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.gpus), *started]
        return started


SCRIPTS = (
    Script(
        "torchvision's reference script: AMP, EMA, channels_last, workers, pinned memory",
        ("classification.py", "--amp", "--model-ema", "--channels-last", "--batch-size", "16"),
    ),
    Script(
        "the same in fp32, cudnn.benchmark",
        ("classification.py", "--model", "resnet18", "--benchmark", "--batch-size", "16"),
    ),
    Script("timm's script: ViT, fp16, mixup, EMA", ("timm_train.py", "--batch-size", "4")),
    Script(
        "timm's script: ConvNeXt, bf16, channels_last, checkpointing",
        (
            *("timm_train.py", "--model", "convnext_atto", "--amp-dtype", "bfloat16", "--batch-size", "4"),
            *("--channels-last", "--grad-checkpointing", "--opt", "lamb"),
        ),
    ),
    Script(
        "transformers' Trainer: GPT-2, bf16, accumulation, checkpointing",
        ("hf_trainer.py", "gpt2", "--gradient-checkpointing"),
    ),
    Script(
        "transformers' Trainer: BERT, fp16, accumulation, saved",
        ("hf_trainer.py", "bert", "--precision", "fp16", "--layers", "6", "--save"),
    ),
    Script("Lightning: 16-bit, accumulation, averaged weights", ("lightning_fit.py",)),
    Script("Lightning: DDP on 2", ("lightning_fit.py", "--devices", "2", "--strategy", "ddp"), gpus=2),
    Script("nanoGPT: bf16, fused AdamW, accumulation", ("nanogpt.py", "--prefetch", "--evaluate")),
    Script("nanoGPT: torch.compile", ("nanogpt.py", "--compile", "--layers", "1", "--accumulate", "1", "--steps", "2")),
    Script("nanoGPT: DDP on 2 by torchrun", ("nanogpt.py", "--prefetch"), gpus=2, torchrun=True),
    Script("DDP on 2 by mp.spawn", ("data_parallel.py",), gpus=2),
    Script("FSDP2 on 2 by torchrun, checkpointing", ("fsdp.py", "--checkpoint"), gpus=2, torchrun=True),
    Script("FSDP2 on 2 by mp.spawn, CPU offload", ("fsdp.py", "--spawn", "--offload"), gpus=2),
    Script("CUDA graphs: make_graphed_callables", ("graphs.py", "callables")),
    Script("CUDA graphs: a captured step", ("graphs.py", "capture")),
    Script("CUDA graphs: one pool for several", ("graphs.py", "pool")),
    Script("streams, record_stream, events", ("streams.py",)),
    Script("checkpointing: both kinds, selective, sequential, wrapped", ("checkpoints.py",)),
    Script("save_on_cpu(pin_memory=True)", ("offload.py", "activations")),
    Script("optimizer states on the host", ("offload.py", "optimizer")),
    Script("layers brought one at a time", ("offload.py", "parameters")),
    Script("_record_memory_history and snapshot", ("history.py",)),
    Script("changing lengths, plain segments", ("segments.py",)),
    Script(
        "changing lengths, expandable segments",
        ("segments.py",),
        variables={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    Script("halves its batch when out of memory, 8 GB", ("halving.py", "512"), options=("--budget", "8GB")),
)
