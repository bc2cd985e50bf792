"""Fits `conv_rules.json` to cuDNN's answers about convolution workspaces.

Run: `python tools/fit_conv_rules.py QUERIES_DIR rust/gpumem-core/data/conv_rules.json HELD_OUT.csv`

`QUERIES_DIR` holds one file `GPU.csv` per GPU, made by asking cuDNN's deviceless heuristics for the first acceptable
plan of many layers. Columns, without a header: gpu, direction (fwd, dgrad, wgrad), arithmetic (bf16, fp16, tf32, fp32),
layout (NCHW, NHWC), N, C, H, W, K, R, S, padding h w, stride h w, dilation h w, groups, rank, engine, tensor core,
workspace bytes.

A leaf of a tree predicts `copies of x, w, y (bits 1, 2, 4; plain or with padded channels) + thousandths of the fp32
weight + bytes`. Splits and leaves minimise the summed `|log((predicted + 64 KiB) / (answered + 64 KiB))|`. Thirty
percent of the layers (chosen by a hash of the layer) are held out; a sample of them is written for the Rust test.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Terms = tuple[int, int, float, int]

FAMILIES = {
    "v100": "volta",
    "t4": "turing",
    "a100": "ampere-datacenter",
    "rtx3090": "ampere-consumer",
    "rtx4090": "ada",
    "h100": "hopper",
    "b200": "blackwell-datacenter",
    "rtx5090": "blackwell-consumer",
}
ARITHMETIC = {"bf16": "half", "fp16": "half", "tf32": "tf32", "fp32": "fp32"}
FEATURES = [
    "batch",
    "channels_x_per_group",
    "channels_y_per_group",
    "groups",
    "pixels_x",
    "pixels_y",
    "taps",
    "stride",
    "dilation",
    "gemm_m",
    "x_bytes",
    "w_bytes",
    "y_bytes",
    "misalign_x",
    "misalign_y",
    "macs",
    "out_tiles",
    "weight_tiles",
    "gemm_k",
]
COLUMNS = [
    "gpu",
    "op",
    "arithmetic",
    "layout",
    "N",
    "C",
    "H",
    "W",
    "K",
    "R",
    "S",
    "ph",
    "pw",
    "sh",
    "sw",
    "dh",
    "dw",
    "g",
    "rank",
    "engine",
    "tensor_core",
    "bytes",
]
SAMPLE_COLUMNS = [
    "gpu",
    "op",
    "arithmetic",
    "layout",
    "N",
    "C",
    "K",
    "H",
    "W",
    "R",
    "S",
    "ph",
    "pw",
    "sh",
    "sw",
    "dh",
    "dw",
    "g",
    "bytes",
]

TABLES = 65536.0  # Bytes of index tables that are not worth a term.
LEAVES_MAX, LEAF_ROWS_MIN, GAIN_MIN = 24, 12, 1.0
LOSS_CAP = 1.5
HIGH_QUANTILE, LOW_QUANTILE = 0.98, 0.02
HELD_OUT_BELOW = 77  # Of 256.
SAMPLES_PER_RULE = 10
WEIGHTS = (0, 0.5, 1, 2, 2.7778, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # 25/9: Winograd's transformed filters.
BYTES = tuple(1 << n for n in (18, 20, 21, 22, 23, 24))
CANDIDATES: list[Terms] = [(m, p, k, 0) for m in range(8) for p in (0, 1) for k in WEIGHTS if m or not p]
CANDIDATES += [(m, int(m > 0), 0, b) for m in (0, 5, 7) for b in BYTES]


def load(path: Path) -> list[dict[str, Any]]:
    """The answered queries of one GPU."""
    with path.open() as file:
        rows = [dict(zip(COLUMNS, line, strict=True)) for line in csv.reader(file) if len(line) == len(COLUMNS)]
    parsed: list[dict[str, Any]] = [{k: v if i < 4 else int(v) for i, (k, v) in enumerate(r.items())} for r in rows]
    return [row for row in parsed if row["bytes"] >= 0]


def held_out(row: dict[str, Any]) -> bool:
    """Whether a layer is kept from fitting (the same for every batch, GPU and arithmetic)."""
    layer = ",".join(str(row[k]) for k in ("C", "K", "H", "W", "R", "S", "sh", "g", "dh"))
    return hashlib.md5(layer.encode(), usedforsecurity=False).digest()[0] < HELD_OUT_BELOW


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Data:
    """Queries as arrays: features, sizes of the copies (plain, padded), fp32 weight bytes, answers."""

    features: Floats
    plain: Floats
    padded: Floats
    weight: Floats
    answers: Floats

    @classmethod
    def of(cls, rows: list[dict[str, Any]]) -> Data:
        """Arrays of these queries."""
        parts = [_row(row) for row in rows]
        features, plain, padded, weight = (np.array([part[i] for part in parts], float) for i in range(4))
        return cls(features, plain, padded, weight, np.array([row["bytes"] for row in rows], float))

    def predict(self, terms: Terms, rows: npt.NDArray[np.intp] | slice = slice(None)) -> Floats:
        """Bytes that a leaf's terms give."""
        copies, padded, weights, extra = terms
        mask = np.array([copies >> bit & 1 for bit in range(3)], float)
        tensors = (self.padded if padded else self.plain)[rows]
        return np.asarray(tensors @ mask + weights * self.weight[rows] + extra)


def _row(r: dict[str, Any]) -> tuple[list[int], list[int], list[int], int]:
    itemsize = 2 if r["arithmetic"] in ("fp16", "bf16") else 4
    n, c, k, g = r["N"], r["C"], r["K"], r["g"]
    cg, kg, pixels_x, taps = c // g, k // g, r["H"] * r["W"], r["R"] * r["S"]
    out_h = (r["H"] + 2 * r["ph"] - r["dh"] * (r["R"] - 1) - 1) // r["sh"] + 1
    out_w = (r["W"] + 2 * r["pw"] - r["dw"] * (r["S"] - 1) - 1) // r["sw"] + 1
    pixels_y = out_h * out_w
    gemm_m, gemm_k = n * pixels_y, cg * taps
    plain = [n * c * pixels_x * itemsize, k * cg * taps * itemsize, n * k * pixels_y * itemsize]
    features = [n, cg, kg, g, pixels_x, pixels_y, taps, max(r["sh"], r["sw"]), max(r["dh"], r["dw"]), gemm_m, *plain]
    tiles = [_ceil(gemm_m, 128) * _ceil(k, 128), _ceil(kg, 128) * _ceil(gemm_k, 128) * g]
    features += [cg % 8, kg % 8, gemm_m * k * gemm_k, *tiles, gemm_k]
    pad = (lambda channels: _ceil(channels, 16 // itemsize) * 16 // itemsize) if g == 1 else (lambda channels: channels)
    wide = [n * pad(c) * pixels_x * itemsize, pad(k) * pad(cg) * taps * itemsize, n * pad(k) * pixels_y * itemsize]
    # One channel or one pixel is the same bytes in both layouts: nothing to copy unless it is padded.
    last = r["layout"] == "NHWC"
    copied = [last or (a > 1 and b > 1) for a, b in ((c, pixels_x), (cg, taps), (k, pixels_y))]
    padded = [w if copy or w != p else 0 for copy, w, p in zip(copied, wide, plain, strict=True)]
    return features, [p * copy for copy, p in zip(copied, plain, strict=True)], padded, k * cg * taps * 4


def loss(predicted: Floats, answered: Floats) -> Floats:
    """Capped distance of each prediction."""
    return np.minimum(np.abs(np.log((predicted + TABLES) / (answered + TABLES))), LOSS_CAP)


@dataclass
class Node:
    """A split (feature, most, left, right) or, without one, a leaf (likely, low, high)."""

    rows: npt.NDArray[np.intp]
    split: tuple[int, float, Node, Node] | None = None
    leaf: tuple[Terms, Terms, Terms] | None = None


def grow(data: Data) -> Node:
    """A tree, always splitting where the loss falls most."""
    losses = np.stack([loss(data.predict(terms), data.answers) for terms in CANDIDATES], 1)
    root = Node(np.arange(len(data.answers)))
    leaves = [(root, *_best_split(data, losses, root.rows))]
    while len(leaves) < LEAVES_MAX:
        best = int(np.argmax([gain for _, gain, _, _ in leaves]))
        node, gain, feature, most = leaves[best]
        if gain < GAIN_MIN:
            break
        leaves.pop(best)
        goes_left = data.features[node.rows, feature] <= most
        left, right = Node(node.rows[goes_left]), Node(node.rows[~goes_left])
        node.split = (feature, most, left, right)
        leaves += [(child, *_best_split(data, losses, child.rows)) for child in (left, right)]
    for node, *_ in leaves:
        ends = [_end(data, node.rows, high=high) for high in (False, True)]
        node.leaf = (_likely(data, losses, node.rows), ends[0], ends[1])
    return root


def _best_split(data: Data, losses: Floats, rows: npt.NDArray[np.intp]) -> tuple[float, int, float]:
    whole = float(losses[rows].sum(0).min())
    best = (-1.0, 0, 0.0)
    for feature in range(len(FEATURES)):
        order = rows[np.argsort(data.features[rows, feature], kind="stable")]
        values = data.features[order, feature]
        running = np.cumsum(losses[order], 0)
        cuts = np.nonzero(values[1:] != values[:-1])[0]
        cuts = cuts[(cuts + 1 >= LEAF_ROWS_MIN) & (len(order) - cuts - 1 >= LEAF_ROWS_MIN)]
        if len(cuts) > 60:
            cuts = cuts[np.linspace(0, len(cuts) - 1, 60).astype(int)]
        if len(cuts):
            costs = running[cuts].min(1) + (running[-1] - running[cuts]).min(1)
            i = int(costs.argmin())
            if whole - costs[i] > best[0] + 1e-9:
                best = (whole - float(costs[i]), feature, float(values[cuts[i]]))
    return best


def _likely(data: Data, losses: Floats, rows: npt.NDArray[np.intp]) -> Terms:
    copies, padded, weights, extra = CANDIDATES[int(losses[rows].sum(0).argmin())]
    if weights:
        rest = (data.answers[rows] - data.predict((copies, padded, 0, 0), rows)) / np.maximum(data.weight[rows], 1)
        median = max(0.0, round(float(np.median(rest)), 3))
        tries = [(copies, padded, k, extra) for k in (weights, median)]
        return min(tries, key=lambda terms: float(loss(data.predict(terms, rows), data.answers[rows]).sum()))
    return copies, padded, weights, extra


def _end(data: Data, rows: npt.NDArray[np.intp], *, high: bool) -> Terms:
    """The tightest terms beyond which few answers of a leaf lie."""
    quantile, method, sign = (HIGH_QUANTILE, "higher", 1) if high else (LOW_QUANTILE, "lower", -1)
    answers = data.answers[rows]
    best: tuple[float, Terms] = (np.inf, (0, 0, 0.0, 0))
    for copies in range(8):
        for padded in (0, 1):
            rest = answers - sign * TABLES / 2 - data.predict((copies, padded, 0, 0), rows)
            per_weight = float(np.quantile(rest / np.maximum(data.weight[rows], 1), quantile, method=method))  # type: ignore[call-overload]
            weights = max(0.0, round(max(0.0, per_weight) + sign * 0.0005, 3))
            steps = max(0, int(np.quantile(rest, quantile, method=method)))  # type: ignore[call-overload]
            extra = (_ceil(steps, 65536) if high else steps // 65536) * 65536
            for terms in ((copies, padded, weights, 0), (copies, padded, 0.0, extra)):
                end = data.predict(terms, rows)
                holds = answers <= end * 1.001 + TABLES if high else answers >= end * 0.999 - TABLES
                cost = float(loss(end, answers).sum())
                if holds.mean() >= (0.96 if high else 0.97) and cost < best[0]:
                    best = (cost, terms)
    return best[1]


def serialise(root: Node) -> list[Any]:
    """Nodes in pre-order, children by position."""
    nodes: list[Any] = []

    def visit(node: Node) -> int:
        position = len(nodes)
        nodes.append(None)
        if node.split:
            feature, most, left, right = node.split
            nodes[position] = [feature, int(most), visit(left), visit(right)]
        elif node.leaf:
            ends = [[copies, padded, round(k * 1000), extra] for copies, padded, k, extra in node.leaf]
            nodes[position] = dict(zip(("likely", "low", "high"), ends, strict=True))
        return position

    visit(root)
    return nodes


def evaluate(root: Node, data: Data) -> dict[str, Any]:
    """Shares of held-out answers that are right (1 percent or 64 KiB), bracketed, above the high end."""
    ends = np.zeros((3, len(data.answers)))
    for i in range(len(data.answers)):
        node = root
        while node.split:
            feature, most, left, right = node.split
            node = left if data.features[i, feature] <= most else right
        for j, terms in enumerate(node.leaf or ()):
            ends[j, i] = data.predict(terms, slice(i, i + 1))[0]
    likely, low, high = ends
    exact = np.abs(likely - data.answers) <= np.maximum(0.01 * data.answers, TABLES)
    above = data.answers > high * 1.01 + TABLES
    below = data.answers < low * 0.99 - TABLES
    relative = np.abs(likely - data.answers) / np.maximum(data.answers, TABLES)
    return {
        "points": len(data.answers),
        "exact": round(float(exact.mean()), 3),
        "bracketed": round(float((~above & ~below).mean()), 3),
        "above_high": round(float(above.mean()), 3),
        "likely_below": round(float((likely < data.answers * 0.99 - TABLES).mean()), 3),
        "median_relative_error": round(float(np.median(relative)), 3),
    }


def main(queries: Path, rules_path: Path, sample_path: Path) -> None:
    """Fit every rule, write the table and the held-out sample."""
    rng = random.Random(7)
    rules, sample = [], []
    for gpu, family in FAMILIES.items():
        rows = load(queries / f"{gpu}.csv")
        for arithmetic in sorted({row["arithmetic"] for row in rows}):
            for layout in ("NCHW", "NHWC"):
                for direction in ("fwd", "dgrad", "wgrad"):
                    key = (arithmetic, layout, direction)
                    chosen = [r for r in rows if (r["arithmetic"], r["layout"], r["op"]) == key]
                    fitted, kept = [r for r in chosen if not held_out(r)], [r for r in chosen if held_out(r)]
                    root = grow(Data.of(fitted))
                    rule: dict[str, Any] = {"family": family, "arithmetic": ARITHMETIC[arithmetic]}
                    rule |= {"layout": layout.lower(), "direction": direction, "points": len(fitted)}
                    rules.append({**rule, "heldout": evaluate(root, Data.of(kept)), "nodes": serialise(root)})
                    picked = rng.sample(kept, min(SAMPLES_PER_RULE, len(kept)))
                    sample += [",".join(str(row[k]) for k in SAMPLE_COLUMNS) for row in picked]
    head = {
        "schema": 1,
        "cudnn": "9.24.0.43",
        "source": "decision trees fitted to first acceptable plans of cuDNN's deviceless heuristics (INSTANT), queried "
        "for convolution layers of 48 torchvision and timm models, U-Net, diffusion and DCGAN layers at two batch "
        "sizes each; 30 percent of the layers held out",
        "features": FEATURES,
    }
    lines = ",\n".join("  " + json.dumps(rule, separators=(",", ":")) for rule in rules)
    rules_path.write_text(json.dumps(head)[:-1] + ',\n "rules": [\n' + lines + "\n]}\n")
    title = (
        "# first acceptable plans of cuDNN 9.24 (deviceless), layers not used for fitting: gpu,direction,arithmetic,"
    )
    title += "layout,N,C,K,H,W,R,S,pad h,pad w,stride h,stride w,dilation h,dilation w,groups,workspace bytes"
    sample_path.write_text("\n".join([title, *sample]) + "\n")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
