"""One comparison: a model reference, a batch and a loop, as plain data that travels as JSON and keys the cache."""

from __future__ import annotations

import ast
import dataclasses
import json
from typing import Any

from gpumem.loop import LoopConfig

CAPABILITIES = {
    "t4": (7, 5),
    "a100": (8, 0),
    "rtx3090": (8, 6),
    "l4": (8, 9),
    "rtx4090": (8, 9),
    "h100": (9, 0),
    "h200": (9, 0),
    "b200": (10, 0),
    "rtx5090": (12, 0),
}
"""Compute capability of each card that cases name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is run on both sides.

    Attributes:
        model: Reference into `tests.parity.models`, such as `tv:resnet18`.
        batch: Batch size.
        config: The loop.
        optimizer: Name in `torch.optim`, with keyword arguments if any: `sgd(momentum=0.9)`.
        cudnn: `torch.backends.cudnn.enabled`.
        profile: Virtual GPU profile.
        workspaces: `stub` (cuDNN asks for no workspace) or `real` (cuDNN's own heuristics).
        cudnn_benchmark: `torch.backends.cudnn.benchmark`.
        regions: Checkpointed regions and their options, applied with `gpumem.checkpointing.apply_regions`.
        count: What the device answers a read of one 32-bit number with: how many elements of a mask are set.
    """

    model: str
    batch: int = 2
    config: LoopConfig = dataclasses.field(default_factory=LoopConfig)
    optimizer: str = "sgd"
    cudnn: bool = True
    profile: str = "rtx3090"
    workspaces: str = "stub"
    cudnn_benchmark: bool = False
    regions: tuple[tuple[str, str], ...] = ()
    count: int = 0

    def to_json(self) -> str:
        """The case as one line of JSON with sorted keys; fields of the loop that have their default are left out."""
        default = LoopConfig()
        config = {
            field.name: getattr(self.config, field.name)
            for field in dataclasses.fields(default)
            if getattr(self.config, field.name) != getattr(default, field.name)
        }
        fields = {**dataclasses.asdict(self), "config": config}
        for name in ("cudnn_benchmark", "regions", "count"):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Inverse of `to_json`."""
        fields = json.loads(text)
        regions = tuple((name, option) for name, option in fields.get("regions", ()))
        return cls(**{**fields, "config": LoopConfig(**fields["config"]), "regions": regions})

    def optimizer_call(self) -> tuple[str, dict[str, Any]]:
        """Name and keyword arguments of `optimizer`."""
        tree = ast.parse(self.optimizer, mode="eval").body
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            return tree.func.id, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
        return self.optimizer, {}

    def label(self) -> str:
        """Short text for tables and test ids."""
        config, default = self.config, LoopConfig()
        extras = [
            f"{field.name}={getattr(config, field.name)}"
            for field in dataclasses.fields(config)
            if field.name not in ("mode", "precision") and getattr(config, field.name) != getattr(default, field.name)
        ]
        if not self.cudnn:
            extras.append("cudnn off")
        if self.cudnn_benchmark:
            extras.append("cudnn.benchmark")
        if self.regions:
            extras.append(f"{len(self.regions)} regions")
        if self.workspaces != "stub" or self.profile != "rtx3090":
            extras.append(f"{self.profile}/{self.workspaces}")
        words = [self.model, f"b{self.batch}", config.precision, *extras]
        words.insert(3, "infer" if config.mode == "infer" else self.optimizer)
        return " ".join(words)
