"""gpumem's prediction equals unmodified CUDA PyTorch on the virtual GPU: peaks to the byte, sequences event by event.

The wide version is `tests/parity/sweep.py`; here is a selection over every family that takes a few minutes.
"""

from __future__ import annotations

import functools
import zlib

import pytest
import torch

from gpumem.loop import LoopConfig
from tests.parity import models, ours, virtual
from tests.parity.case import Case
from tests.parity.compare import compare
from tests.parity.difference import differences, sequences_equal
from tests.parity.models import layers
from tests.parity.selection import BATCH, SETTINGS, case_of
from tests.parity.timeline import Timeline

# What a model's code warns about is not what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FP32, BF16, INFER_FP32, INFER_BF16 = SETTINGS
# One of each kind of network in every setting; then every other family once, in the setting that exercises it most.
EVERY_SETTING = ("tv:resnet18", "tv:vit_b_16", "hf:gpt2", "unet:plain", "misc:custom_function")
TRAINED_BF16 = (
    "tv:mobilenet_v3_small",
    "tv:efficientnet_b0",
    "tv:squeezenet1_1",
    "tv:shufflenet_v2_x0_5",
    "tv:swin_t",
    "tv:convnext_tiny",
    "tv:lraspp_mobilenet_v3_large",
    "tv:r3d_18",
    "timm:convnext_atto",
    "timm:resnet18d",
    "timm:mixer_b16_224",
    "timm:levit_128",
    "timm:mobilevit_xxs",
    "timm:poolformer_s12",
    "timm:regnety_004",
    "hf:bert",
    "hf:t5",
    "hf:bart",
    "hf:llama",
    "hf:mistral",
    "hf:qwen3",
    "hf:gemma",
    "hf:vit",
    "hf:swin",
    "hf:clip",
    "hf:opt",
    *(f"nn:{name}" for name in ("lstm", "gru", "rnn", "lstm_cell", "attention", "transformer", "encoder", "mlp_norm")),
    *(f"misc:{name}" for name in models.names("misc") if name != "custom_function"),
    "unet:group_norm_attention",
    "unet:3d",
)
# Mechanisms that no other case has, each in the setting that shows it.
MORE = (
    ("hf:hubert", FP32),
    ("nn:encoder_padded", INFER_FP32),
    ("nn:gru_cell", FP32),
    ("op:cholesky", FP32),
    ("op:ctc_loss", FP32),
    ("op:index_host", FP32),
    ("op:masked_scatter", FP32),
    ("op:scatter_value", FP32),
    ("op:sort_long", BF16),
    ("op:spectral_norm", BF16),
    ("op:var_mean", FP32),
    ("op:embedding_columns", BF16),
    ("op:mask_from_host", FP32),
    ("op:where_tensor", BF16),
    ("zoo:rembert", BF16),
    ("zoo:roformer", FP32),
    ("zoo:layoutlm", BF16),
    ("zoo:megatron-bert", INFER_FP32),
)
LOOPS: dict[str, tuple[str, LoopConfig, str]] = {
    "channels_last": ("tv:resnet18", LoopConfig(channels_last=True, precision="amp-fp16"), "sgd(momentum=0.9)"),
    "pure fp16": ("hf:gpt2", LoopConfig(precision="fp16"), "adamw"),
    "pure bf16": ("tv:resnet18", LoopConfig(precision="bf16"), "adam"),
    "tf32": ("nn:mlp", LoopConfig(precision="tf32"), "adamw"),
    "accumulate": ("nn:encoder", LoopConfig(accumulate=2, precision="amp-fp16"), "adamw"),
    "zero_grad zero": ("nn:mlp", LoopConfig(zero_grad="zero"), "sgd(momentum=0.9)"),
    "clip": ("nn:encoder", LoopConfig(clip_grad_norm=1.0), "adamw"),
    "step in backward": ("hf:gpt2", LoopConfig(step_in_backward=True, precision="amp-bf16"), "adamw"),
    "step in backward, fused": ("nn:encoder", LoopConfig(step_in_backward=True), "adam(fused=True)"),
    "fused": ("nn:mlp", LoopConfig(), "adamw(fused=True)"),
    "for-loop": ("nn:mlp", LoopConfig(), "adam(foreach=False)"),
    "rmsprop": ("nn:mlp", LoopConfig(), "rmsprop(momentum=0.9, centered=True)"),
    "adagrad": ("nn:mlp", LoopConfig(), "adagrad"),
    "adadelta": ("nn:mlp", LoopConfig(), "adadelta"),
    "nadam": ("nn:mlp", LoopConfig(), "nadam"),
    "radam": ("nn:mlp", LoopConfig(), "radam"),
    "adamax": ("nn:mlp", LoopConfig(), "adamax"),
    "asgd": ("nn:mlp", LoopConfig(), "asgd"),
    "rprop": ("nn:mlp", LoopConfig(), "rprop"),
}


# A quarter of the ops, each in one trained setting, chosen by name so that a new op moves no other; the sweep runs all.
OP_STRIDE = 4
# Two sizes are enough for a polynomial that the comparison at a third one tests; three are what users get.
FEW_BATCHES = (2, 3)
ALL_BATCHES = (2, 3, 5)


def _selected() -> list[tuple[str, str]]:
    chosen = [(reference, setting) for reference in EVERY_SETTING for setting in SETTINGS]
    chosen += [(reference, BF16) for reference in TRAINED_BF16]
    chosen += MORE
    for name in models.names("op"):
        half, rest = divmod(zlib.crc32(name.encode()), OP_STRIDE)
        if rest == 0:
            chosen.append((f"op:{name}", FP32 if half % 2 else BF16))
    return chosen


@functools.lru_cache(maxsize=1)
def _loaded(reference: str) -> models.LoadedModel:
    torch.set_num_threads(1)
    return models.load(reference)


def _check(case: Case, batches: tuple[int, ...] = ALL_BATCHES) -> None:
    result = compare(case, ours.extract(case, _loaded(case.model), batches))
    shown = "\n".join(differences(result.truth.timeline.trimmed(), result.prediction.timeline.trimmed(), 3))
    assert not result.off, f"{case.label()}\n{shown}"


@pytest.mark.usefixtures("virtual_gpu")
@pytest.mark.parametrize(("reference", "setting"), _selected())
def test_prediction_equals_cuda(reference: str, setting: str) -> None:
    config, optimizer = SETTINGS[setting]
    # CLIP's loss and some ops are quadratic in the batch.
    whole = reference in EVERY_SETTING or reference.startswith(("op:", "hf:clip"))
    _check(case_of(reference, config, optimizer), ALL_BATCHES if whole else FEW_BATCHES)


@pytest.mark.usefixtures("virtual_gpu")
@pytest.mark.parametrize("name", layers.RECURRENT)
def test_recurrent_layers_without_cudnn_equal_cuda(name: str) -> None:
    _check(Case(model=f"nn:{name}", batch=BATCH, optimizer="adamw", cudnn=False), FEW_BATCHES)


@pytest.mark.usefixtures("virtual_gpu")
@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_and_optimizer_equals_cuda(name: str) -> None:
    reference, config, optimizer = LOOPS[name]
    _check(Case(model=reference, batch=BATCH, config=config, optimizer=optimizer))


@pytest.mark.usefixtures("virtual_gpu")
@pytest.mark.parametrize("batch", [2, 7, 33])
def test_batches_that_were_not_traced_equal_cuda(batch: int) -> None:
    _check(Case(model="tv:resnet18", batch=batch, optimizer="sgd(momentum=0.9)"))


@pytest.mark.usefixtures("virtual_gpu")
def test_the_virtual_gpus_counters_agree_with_its_own_events() -> None:
    truth = virtual.run(Case(model="nn:mlp", batch=BATCH))
    assert truth.timeline.requested_peak_bytes() == truth.requested_peak_bytes
    assert truth.requested_peak_bytes <= truth.allocated_peak_bytes <= truth.reserved_peak_bytes
    assert [name for name, _ in truth.timeline.marks] == ["forward", "backward", "optimizer", "end"] * 3


def test_the_comparison_sees_a_missing_allocation_and_a_late_free() -> None:
    cuda = Timeline([512, 1024, -1, 256, -2, -3], [("end", 6)])
    assert sequences_equal(cuda, cuda)
    missing = Timeline([512, 1024, -1, -2], [("end", 4)])
    assert not sequences_equal(cuda, missing)
    assert differences(cuda, missing, 5)
    late = Timeline([512, 1024, 256, -1, -2, -3], [("end", 6)])
    assert not sequences_equal(cuda, late)
    assert "free of allocation 0" in differences(cuda, late, 5)[0]
    assert cuda.requested_peak_bytes() == 1536
    assert late.requested_peak_bytes() == 1792


def test_the_order_of_frees_between_two_allocations_is_no_difference() -> None:
    assert sequences_equal(Timeline([8, 8, -1, -2, 8], []), Timeline([8, 8, -2, -1, 8], []))
