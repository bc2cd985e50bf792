"""Options that several commands share, and what they mean as keywords of the Python API."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gpumem._core import find_gpu, parse_alloc_conf
from gpumem.text import optimizer_from_text
from gpumem.units import parse_bytes


class Command(TyperCommand):
    """A command whose usage names its argument as everything else does: MODEL."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The pieces without the braces of a required argument."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="torchvision:NAME, timm:NAME, hf:NAME (config only) or package.module:factory.",
        show_default=False,
    ),
]
Batch = Annotated[int, typer.Option("--batch", "-b", metavar="N", help="Samples per step.")]
Gpu = Annotated[
    str | None, typer.Option(metavar="CARD", help="For example rtx3090 or a100-80gb; `gpumem gpus` lists all.")
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Limit for the whole process: 24GB (10^9) or 24GiB (2^30); default: the card's."),
]
Mode = Annotated[str, typer.Option(metavar="train|infer", help="What is run.")]
Precision = Annotated[str, typer.Option(metavar="NAME", help="fp32, tf32, amp-fp16, amp-bf16, fp16 or bf16.")]
Optimizer = Annotated[
    str, typer.Option(metavar="NAME", help="Of torch.optim, also with arguments: 'sgd(momentum=0.9)' or adamw:lr=1e-3.")
]
Input = Annotated[
    str | None,
    typer.Option(
        metavar="SHAPE",
        help="Shape of one sample: 3,224,224; with a type: 128:int64; by name: "
        "'input_ids=128:int64;labels=128:int64'. Default: what the model's library says.",
    ),
]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Model and images in channels_last.")]
StepInBackward = Annotated[
    bool,
    typer.Option("--step-in-backward", help="Each parameter has an optimizer of its own, at once with its gradient."),
]
ZeroGrad = Annotated[str, typer.Option(metavar="none|zero", help="Gradients are set to None, or to zero.")]
Accumulate = Annotated[int, typer.Option(metavar="N", help="Micro-batches per optimizer step.")]
ClipGradNorm = Annotated[float | None, typer.Option(metavar="NORM", help="Clip gradients to this norm.")]
HostReads = Annotated[
    str,
    typer.Option(
        metavar="error|zeros",
        help="When the model reads values of tensors (.item(), masks): stop, or take zeros and list them.",
    ),
]
Stack = Annotated[str | None, typer.Option(metavar="STACK", help="Target software, for example torch-2.14+cu130.")]
Context = Annotated[str | None, typer.Option(metavar="SIZE", help="Of the CUDA context, if you know it: 500MB.")]
AllocConf = Annotated[str | None, typer.Option(metavar="CONF", help="PYTORCH_CUDA_ALLOC_CONF of the target.")]
CudnnBenchmark = Annotated[
    bool, typer.Option("--cudnn-benchmark", help="The program sets torch.backends.cudnn.benchmark.")
]
ConvWorkspaces = Annotated[
    str,
    typer.Option(
        metavar="auto|cudnn|rules",
        help="Workspaces of convolutions from the installed cuDNN (auto: where it can be asked) or from fitted rules.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]


def loop_keywords(
    mode: str,
    precision: str,
    optimizer: str,
    channels_last: bool,
    zero_grad: str,
    accumulate: int,
    clip_grad_norm: float | None,
    step_in_backward: bool,
    host_reads: str,
    gpu: str | None,
) -> dict[str, Any]:
    """The loop's keywords, for `gpumem.extract`."""
    return {
        "mode": mode,
        "precision": precision,
        "optimizer": optimizer_from_text(optimizer),
        "channels_last": channels_last,
        "zero_grad": zero_grad,
        "accumulate": accumulate,
        "clip_grad_norm": clip_grad_norm,
        "step_in_backward": step_in_backward,
        "host_reads": host_reads,
        "gpu": gpu,
    }


def target_keywords(
    gpu: str | None,
    budget: str | None,
    stack: str | None,
    context: str | None,
    alloc_conf: str | None,
    cudnn_benchmark: bool = False,
    conv_workspaces: str = "auto",
) -> dict[str, Any]:
    """The target's keywords; a name or size that is wrong is found here, before torch is imported."""
    if gpu is not None:
        find_gpu(gpu)
    return {
        "budget": None if budget is None else parse_bytes(budget),
        "stack": stack,
        "context": None if context is None else context_bytes(context),
        "alloc_conf": None if alloc_conf is None else parse_alloc_conf(alloc_conf),
        "cudnn_benchmark": cudnn_benchmark,
        "conv_workspaces": conv_workspaces,
    }


def context_bytes(text: str) -> int:
    """Read the size of a context."""
    # Zero, as in Python, asks for what PyTorch alone takes.
    return 0 if text.strip() in ("0", "0B") else parse_bytes(text, "context")
