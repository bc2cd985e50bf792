"""What travels to workers: specs and reports pickle to equal objects."""

from __future__ import annotations

import pickle

import torch

import gpumem


def test_specs_and_reports_pickle() -> None:
    spec = gpumem.extract(torch.nn.Linear(8, 2), (8,))
    report = spec.estimate(4, gpu="t4")

    assert pickle.loads(pickle.dumps(spec)) == spec
    assert pickle.loads(pickle.dumps(report)) == report


def test_reprs_name_the_facts() -> None:
    spec = gpumem.extract(torch.nn.Linear(8, 2), (8,))

    assert repr(spec) == 'ModelSpec("Linear", train, fp32, "SGD()")'
    assert repr(spec.estimate(4, gpu="t4")).endswith("fits=True)")
