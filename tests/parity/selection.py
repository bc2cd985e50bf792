"""What the wide sweep runs: models and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpumem.loop import LoopConfig
from tests.parity import models
from tests.parity.case import Case
from tests.parity.models import layers, ops, vision

BATCH = 4
"""Not among the traced sizes 2, 3, 5: the polynomials and formulas are tested, not remembered."""

SETTINGS: dict[str, tuple[LoopConfig, str]] = {
    "train fp32 sgd(momentum)": (LoopConfig(), "sgd(momentum=0.9)"),
    "train amp-bf16 adamw": (LoopConfig(precision="amp-bf16"), "adamw"),
    "infer fp32": (LoopConfig(mode="infer"), "sgd"),
    "infer amp-bf16": (LoopConfig(mode="infer", precision="amp-bf16"), "sgd"),
}
"""Settings that every model runs in."""
_ZOO_SETTINGS = ("train amp-bf16 adamw", "infer fp32")

_OPTIMIZERS = (
    "sgd",
    "sgd(momentum=0.9, nesterov=True, weight_decay=0.0001)",
    "adam",
    "adam(amsgrad=True)",
    "adamw",
    "adamax",
    "nadam",
    "radam",
    "adagrad",
    "adadelta",
    "rmsprop",
    "rmsprop(momentum=0.9, centered=True)",
    "rprop",
    "asgd",
    "adafactor",
)
_FUSED = ("sgd(momentum=0.9, fused=True)", "adam(fused=True)", "adamw(fused=True)", "adagrad(fused=True)")
_OPTIMIZED_MODELS = ("tv:resnet18", "nn:encoder", "hf:gpt2")
_LOOPS: dict[str, tuple[LoopConfig, str]] = {
    "tf32": (LoopConfig(precision="tf32"), "adamw"),
    "amp-fp16": (LoopConfig(precision="amp-fp16"), "adamw"),
    "fp16": (LoopConfig(precision="fp16"), "sgd(momentum=0.9)"),
    "bf16": (LoopConfig(precision="bf16"), "adamw"),
    "infer fp16": (LoopConfig(mode="infer", precision="fp16"), "sgd"),
    "infer bf16": (LoopConfig(mode="infer", precision="bf16"), "sgd"),
    "channels_last fp32": (LoopConfig(channels_last=True), "sgd(momentum=0.9)"),
    "channels_last amp-bf16": (LoopConfig(channels_last=True, precision="amp-bf16"), "adamw"),
    "channels_last amp-fp16": (LoopConfig(channels_last=True, precision="amp-fp16"), "adamw"),
    "zero_grad zero": (LoopConfig(zero_grad="zero"), "adamw"),
    "accumulate 2": (LoopConfig(accumulate=2), "adamw"),
    "accumulate 2 amp-fp16": (LoopConfig(accumulate=2, precision="amp-fp16"), "adamw"),
    "clip": (LoopConfig(clip_grad_norm=1.0), "adamw"),
    "step in backward": (LoopConfig(step_in_backward=True), "adamw"),
    "step in backward amp-bf16": (LoopConfig(step_in_backward=True, precision="amp-bf16"), "sgd(momentum=0.9)"),
    "clip amp-fp16": (LoopConfig(clip_grad_norm=1.0, precision="amp-fp16"), "adamw"),
}
_LOOP_MODELS = (
    "tv:resnet18",
    "tv:resnet50",
    "tv:mobilenet_v3_large",
    "tv:efficientnet_b0",
    "tv:densenet121",
    "tv:vit_b_16",
    "tv:swin_t",
    "tv:convnext_tiny",
    "hf:gpt2",
    "hf:bert",
    "hf:t5",
    "hf:llama",
    "nn:encoder",
    "unet:plain",
    "misc:checkpoint",
)
_BATCH_MODELS = ("tv:resnet18", "tv:vit_b_16", "timm:convnext_atto", "hf:gpt2", "nn:transformer", "unet:plain")
_BATCHES = (1, 2, 7, 8, 16, 33, 64)


def timm_selection() -> list[str]:
    """Architectures spread over every family (timm module), at most `_PER_MODULE` of each."""
    import timm

    by_module: dict[str, list[str]] = {}
    for name in timm.list_models():
        by_module.setdefault(timm.models.model_entrypoint(name).__module__.rpartition(".")[2], []).append(name)
    ranked: list[tuple[int, str]] = []
    for members in by_module.values():
        names = [name for name in members if not _HUGE.search(name)]
        stride = max(1, len(names) // _PER_MODULE)
        ranked += list(enumerate(names[::stride][:_PER_MODULE]))
    # The first member of every family comes before the second of any: a sweep cut short is still broad.
    return [name for _, name in sorted(ranked)]


_PER_MODULE = 5
# Gigantic variants repeat their small siblings' structure and take minutes each.
_HUGE = re.compile("giant|gigantic|enormous|_huge|_xxlarge|[357]b|_[126]b|so400m|1280gf|640gf|_l2_")


def wide_models(families: list[str]) -> list[str]:
    """References of the given families, by turns, so that a sweep cut short has some of each."""
    ranked: list[tuple[int, str]] = []
    for family in families:
        names = timm_selection() if family == "timm" else models.names(family)
        ranked += [(rank, f"{family}:{name}") for rank, name in enumerate(names)]
    return [reference for _, reference in sorted(ranked)]


def case_of(reference: str, config: LoopConfig, optimizer: str) -> Case:
    """The model at `BATCH`, on a device that is told the counts which an op asks it for."""
    family, _, name = reference.partition(":")
    count = BATCH * ops.counted(name) if family == "op" else 0
    return Case(model=reference, batch=BATCH, config=config, optimizer=optimizer, count=count)


def cases_of(reference: str) -> Iterator[tuple[str, Case]]:
    """`(setting, case)` of one model in the settings that all models run in."""
    family, _, name = reference.partition(":")
    for setting, (config, optimizer) in SETTINGS.items():
        # A net of one op asks in evaluation what its forward asks in training.
        if family == "op" and setting == "infer fp32":
            continue
        if family == "zoo" and setting not in _ZOO_SETTINGS:
            continue
        yield setting, case_of(reference, config, optimizer)
        if family == "nn" and name in layers.RECURRENT:
            yield setting, Case(model=reference, batch=BATCH, config=config, optimizer=optimizer, cudnn=False)


def further_cases() -> dict[str, list[tuple[str, Case]]]:
    """Reference to `(setting, case)`: optimizers, loops and batches on chosen models."""
    found: dict[str, list[tuple[str, Case]]] = {}

    def add(setting: str, reference: str, config: LoopConfig, optimizer: str, batch: int = BATCH) -> None:
        case = Case(model=reference, batch=batch, config=config, optimizer=optimizer)
        found.setdefault(reference, []).append((setting, case))

    for reference in _OPTIMIZED_MODELS:
        for optimizer in _OPTIMIZERS:
            add("optimizers, default", reference, LoopConfig(), optimizer)
            name, _, rest = optimizer.partition("(")
            if name != "adafactor":
                inner = f"{rest[:-1]}, " if rest else ""
                add("optimizers, foreach=False", reference, LoopConfig(), f"{name}({inner}foreach=False)")
        for optimizer in _FUSED:
            add("optimizers, fused", reference, LoopConfig(), optimizer)
            add("optimizers, fused, amp-fp16", reference, LoopConfig(precision="amp-fp16"), optimizer)
        add("optimizers, capturable", reference, LoopConfig(), "adam(capturable=True)")
    # Muon takes matrices only; these nets have nothing else.
    add("optimizers, default", "op:gelu", LoopConfig(), "muon")
    for reference in _LOOP_MODELS:
        for setting, (config, optimizer) in _LOOPS.items():
            add(setting, reference, config, optimizer)
    for reference in _BATCH_MODELS:
        for batch in _BATCHES:
            for config, optimizer in list(SETTINGS.values())[:2]:
                add(f"batch {batch}", reference, config, optimizer, batch)
    return found


def classification_models() -> list[str]:
    """References of torchvision's classification models."""
    return [f"tv:{name}" for name in vision.classification()]
