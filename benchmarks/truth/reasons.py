"""Why rows miss: written after looking at each, shown beside it in the tables."""

from __future__ import annotations

_SCORES = (
    "below by 22 and 83 MiB per layer for 1 and 4 samples in fp32 and fp16 alike, 5 bytes per attention score; row 123 "
    "(checkpointing), which keeps one layer's activations, is within 1 %. Something in the transformers or torch of "
    "January 2022 kept one more fp32 copy and mask of the scores; not found"
)
_PLANS = (
    "cuDNN 9.24's first TF32 plans for sm_80 copy input, weight and output of the pointwise convolutions into the "
    "workspace; the cuDNN of the run evidently took plans with less: without workspaces, or with the plans for sm_86, "
    "the prediction is within 3 %. Inside the named uncertainty"
)
_XCEPTION = (
    "workspaces again: none would be 11 % low, cuDNN 9.24's plans for sm_80 are 10 % high. Inside the named uncertainty"
)
_VGG = (
    "workspaces of the wide 3x3 convolutions, a fifth of VGG's reserved memory: cuDNN 9.24's plans need less than "
    "those of the run; the validation pass that follows in the same process is not traced"
)
_SMALL = "270 MiB of segments and a context of 514 MiB known to 100 MiB; inside the named uncertainty"
_OLD_STACK = (
    "the same scripts on the same card read 1.2 to 2.5 GiB less a year later, the more the larger the batch (ResNet-50 "
    "b128: 15,120, then 13,236 MiB), so not only a larger context: cuDNN plans too; neither version is stated"
)

MEASURED_REASONS: dict[str, str] = {
    **dict.fromkeys(("122", "124"), _SCORES),
    **dict.fromkeys(("138", "147", "148", "149"), _PLANS),
    "165": _XCEPTION,
    **dict.fromkeys(("163", "164"), _VGG),
    "152": _SMALL,
    **dict.fromkeys(("172", "173", "174", "175", "177", "184", "186"), _OLD_STACK),
}
"""By id of `measured.csv`: rows off by more than 5 %."""

BRACKET_REASONS: dict[str, str] = {}
"""By model of `timm_train_brackets.csv`: rows that miss."""
