"""What is recorded: training and inference loops, single layers, largest batches, step times."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of the reference loop.

    Attributes:
        model: A name for `gpumem.sources.resolve`.
        batch: Batch size.
        input: Shape of one sample as text; empty asks the model.
        loss: What it is trained on: `classes`, `pixels` (a class for each of the input's) or `own` (its `.loss`).
        precision: As for `gpumem.estimate`, as are all below.
        optimizer: An optimizer of `torch.optim` as text.
        mode: `train` or `infer`.
        channels_last: Layout of model and input.
        zero_grad: `none` or `zero`.
        accumulate: Micro-batches per step.
        clip_grad_norm: Largest norm, or None.
        benchmark: `torch.backends.cudnn.benchmark`.
        checkpoint: Option of every block of the model (`gpumem.checkpointing.OPTIONS`); empty for no plan.
    """

    model: str
    batch: int
    input: str = ""
    loss: str = "classes"
    precision: str = "fp32"
    optimizer: str = "sgd(momentum=0.9)"
    mode: str = "train"
    channels_last: bool = False
    zero_grad: str = "none"
    accumulate: int = 1
    clip_grad_norm: float | None = None
    benchmark: bool = False
    checkpoint: str = ""

    @property
    def name(self) -> str:
        """For progress and test ids: what differs from the defaults."""
        words = [self.model.replace("tests.gpu_truth.layers:", "layer:"), f"b{self.batch}", self.precision]
        words.append(self.optimizer if self.mode == "train" else "infer")
        words += [name for name in ("channels_last", "benchmark") if getattr(self, name)]
        words += [f"{name}={getattr(self, name)}" for name in ("accumulate",) if self.accumulate > 1]
        words += ["zero_grad=zero"] if self.zero_grad != "none" else []
        words += [] if self.clip_grad_norm is None else [f"clip={self.clip_grad_norm:g}"]
        words += [self.checkpoint] if self.checkpoint else []
        return " ".join(words)

    @property
    def library(self) -> str:
        """The module that has to be installed for it."""
        found = self.model.partition(":")[0]
        return "transformers" if found == "hf" else found

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `Case(**fields)` is the inverse."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """The largest batch of a case in a limit on what PyTorch's allocator may take.

    Attributes:
        case: The loop; its batch is where the search starts.
        limit_bytes: The limit.
    """

    case: Case
    limit_bytes: int

    @property
    def name(self) -> str:
        """As `Case.name`."""
        return f"largest batch in {self.limit_bytes >> 30} GiB: {self.case.name}"


def _tv(model: str, batch: int, **more: Any) -> Case:
    return Case(model=f"torchvision:{model}", batch=batch, **more)


def _own(model: str, batch: int, input: str = "512", **more: Any) -> Case:
    return Case(model=model, batch=batch, input=input, loss="own", **{"optimizer": "adamw", **more})


def _layer(name: str, batch: int, **more: Any) -> Case:
    return Case(model=f"tests.gpu_truth.layers:{name}", batch=batch, loss="own", **{"optimizer": "sgd", **more})


_FUSED = "adamw(fused=True)"
_LLAMA = "tests.gpu_truth.layers:small_llama"

# Weights and inputs are zeros, so the largest gradient is that of a classifier's bias: nearly GradScaler's 65536. With
# up to 1000 classes float16 holds it; with a vocabulary it does not, and the first step would be skipped.
LOOPS = (
    _tv("resnet50", 32),
    _tv("resnet50", 32, precision="amp-fp16"),
    _own("hf:gpt2", 8, precision="amp-bf16"),
    _tv("vit_b_16", 32, precision="amp-bf16", optimizer="adamw"),
    _tv("resnet50", 32, precision="amp-fp16", channels_last=True),
    _own("hf:gpt2", 8, precision="amp-bf16", checkpoint="checkpoint"),
    _tv("resnet50", 64, precision="tf32", optimizer="adam"),
    _tv("resnet50", 64, benchmark=True),
    _tv("vgg16", 32, optimizer="adam"),
    _own("hf:bert", 8, precision="amp-bf16"),
    _tv("mobilenet_v2", 64, optimizer="rmsprop"),
    _tv("efficientnet_b0", 64, precision="amp-fp16"),
    _own(_LLAMA, 4, input="", precision="bf16", optimizer=_FUSED),
    _tv("resnet50", 64, checkpoint="checkpoint"),
    _tv("vit_b_16", 32, optimizer="adamw"),
    _tv("convnext_tiny", 32, precision="amp-bf16", optimizer="adamw"),
    _tv("swin_t", 32, precision="amp-fp16", optimizer="adamw"),
    _tv("densenet121", 32),
    _own("hf:t5", 8, input="256", precision="amp-bf16"),
    _tv("resnet18", 128, mode="infer"),
    _own("hf:gpt2", 16, precision="bf16", mode="infer"),
    _tv("fcn_resnet50", 4, input="3,256,256", loss="pixels"),
    _tv("regnet_y_3_2gf", 32, precision="amp-fp16"),
    Case(model="timm:maxvit_tiny_tf_224", batch=16, precision="amp-fp16", optimizer="adamw"),
    Case(model="timm:vit_small_patch16_224", batch=64, precision="amp-bf16", optimizer=_FUSED),
    _own("hf:gpt2", 8, precision="bf16", optimizer=_FUSED, clip_grad_norm=1.0),
    _own("hf:gpt2", 8, checkpoint="reentrant"),
    _tv("vit_b_16", 64, precision="amp-bf16", optimizer="adamw", checkpoint="checkpoint"),
    _tv("swin_t", 32, precision="amp-bf16", optimizer="adamw", checkpoint="checkpoint"),
    _own(_LLAMA, 4, input="", precision="amp-bf16", checkpoint="checkpoint"),
    _tv("resnet50", 32, precision="amp-bf16"),
    _tv("resnet50", 32, accumulate=2, optimizer="adam"),
    _tv("resnet50", 32, zero_grad="zero"),
    _tv("resnet50", 128, precision="amp-fp16", channels_last=True, benchmark=True),
    _tv("efficientnet_b0", 64, precision="amp-fp16", channels_last=True),
    _tv("mobilenet_v2", 64, precision="amp-bf16", channels_last=True),
    _own("hf:bert", 8, input="128", optimizer="adamw(foreach=False)"),
    _own("hf:gpt2", 4, optimizer="adafactor"),
    _tv("mobilenet_v3_large", 64, optimizer="adagrad"),
    _tv("efficientnet_v2_s", 16, precision="amp-bf16", optimizer="adamw"),
    _tv("inception_v3", 16, mode="infer", input="3,299,299", precision="fp16"),
    _tv("vit_b_16", 64, mode="infer", precision="amp-fp16"),
    _tv("r3d_18", 4, input="3,16,112,112"),
)
"""Whole loops, with every event of the allocator."""

_PRECISIONS: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "amp-fp16"},
    {"precision": "amp-bf16", "channels_last": True},
)

LAYERS = (
    *(_layer("lstm", 64, precision=precision) for precision in ("fp32", "amp-fp16")),
    *(_layer("lstm_two", 64, precision=precision) for precision in ("fp32", "fp16")),
    *(_layer(name, 64) for name in ("lstm_bidirectional", "gru", "gru_two", "rnn_tanh")),
    _layer("lstm_two", 64, mode="infer"),
    *(
        _layer(f"conv_{shape}", 32, **more)
        for shape in ("stem", "first", "second", "third", "fourth", "pointwise", "depthwise", "grouped")
        for more in _PRECISIONS
    ),
    *(_layer("conv_second", 32, benchmark=True, **more) for more in _PRECISIONS),
    *(_layer(name, 8) for name in ("conv_transposed", "conv_volume", "conv_signal", "conv_dilated")),
    *(_layer("batch_norm", 64, **more) for more in _PRECISIONS),
    *(_layer("attention", 16, precision=precision) for precision in ("fp32", "bf16", "fp16")),
    *(_layer("linear", 256, precision=precision) for precision in ("fp32", "tf32", "fp16", "bf16", "amp-fp16")),
    *(_layer(name, 16) for name in ("ctc", "sorted", "embedding", "cholesky", "fourier")),
)
"""Single layers whose libraries take scratch memory or keep some: cuDNN, cuBLAS, CUB, cuSOLVER, cuFFT."""

_GIB = 1 << 30

BRACKETS = (
    Bracket(case=_tv("resnet50", 64), limit_bytes=8 * _GIB),
    Bracket(case=_own("hf:gpt2", 16, precision="amp-bf16"), limit_bytes=20 * _GIB),
    Bracket(case=_tv("resnet50", 128, precision="amp-fp16", channels_last=True), limit_bytes=16 * _GIB),
    Bracket(case=_tv("vit_b_16", 64, precision="amp-bf16", optimizer="adamw"), limit_bytes=12 * _GIB),
    Bracket(case=_own("hf:gpt2", 32, precision="amp-bf16", checkpoint="checkpoint"), limit_bytes=12 * _GIB),
    Bracket(case=_tv("vgg16", 32, optimizer="adam"), limit_bytes=12 * _GIB),
    Bracket(case=_tv("mobilenet_v2", 64, optimizer="adam"), limit_bytes=8 * _GIB),
    Bracket(case=_own("hf:bert", 16, input="128"), limit_bytes=8 * _GIB),
)
"""True largest batches."""

TIMES = (
    *(case for case in LOOPS if case.mode == "train" and case.checkpoint),
    _own("hf:gpt2", 8, precision="amp-bf16"),
    _own("hf:gpt2", 8),
    _tv("resnet50", 64),
    _tv("resnet50", 64, precision="amp-fp16", channels_last=True),
    _tv("vit_b_16", 64, precision="amp-bf16", optimizer="adamw"),
    _tv("swin_t", 32, precision="amp-bf16", optimizer="adamw"),
    _own(_LLAMA, 4, input="", precision="amp-bf16"),
)
"""Times of a step with checkpoints and without: what recomputation really costs."""
