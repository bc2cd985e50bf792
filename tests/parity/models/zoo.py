"""`zoo:` transformers' model types by their own default configurations, cut to two layers; nobody chose them.

`hf:` holds architectures that this project was developed with. Here is what else the library has and can build from a
configuration alone, with inputs as `gpumem estimate hf:TYPE` guesses them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from gpumem.extraction.inputs import TensorSpec
from gpumem.sources import from_transformers
from gpumem.sources.empty_build import build_empty
from gpumem.sources.transformers_inputs import describe_inputs
from tests.parity.models.base import LoadedModel

_LIST = Path(__file__).with_name("zoo.txt")
_DEPTHS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "num_hidden_groups",
)
_PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type")
_DEPTH = 2
_NESTED = 3
_TOKENS = 64
# What is larger, mostly by its experts, does not fit into the host's memory where a constructor fills it.
_MOST_PARAMETERS = 5_000_000_000


def names() -> list[str]:
    """The types in `zoo.txt`: a model of each runs on the virtual GPU as it is built here."""
    return [line for line in _LIST.read_text(encoding="ascii").splitlines() if line and not line.startswith("#")]


def load(name: str) -> LoadedModel:
    """Build one model, with labels where its head takes them."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config: Any = CONFIG_MAPPING[name]()
    _shallow(config, _NESTED)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    config.dtype = torch.float32
    _, build = from_transformers.find_head(transformers, config)
    parameters = sum(parameter.numel() for parameter in build_empty(build).parameters())
    if parameters > _MOST_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters in {_DEPTH} layers")
    model = build()
    shape = (min(_TOKENS, _tokens(model)),) if model.main_input_name == "input_ids" else None
    described = describe_inputs(model, "train", shape)
    if described is None:
        raise ValueError(f"the input of {type(model).__name__} is unknown")
    inputs = {
        key: TensorSpec(value[0], value[1]) if isinstance(value, tuple) else value
        for key, value in described[0].items()
    }
    return LoadedModel(model, inputs)


def _tokens(model: torch.nn.Module) -> int:
    described = describe_inputs(model, "infer", None)
    assert described is not None
    shape: tuple[int, ...] = described[0]["input_ids"][0]
    return shape[0]


def _shallow(config: Any, nested: int) -> None:
    """Two layers in place of dozens, in the configuration and in those it holds."""
    from transformers import PretrainedConfig

    for name in _DEPTHS:
        if isinstance(getattr(config, name, None), int) and getattr(config, name) > _DEPTH:
            # Some have a sum of others under this name.
            with contextlib.suppress(NotImplementedError):
                setattr(config, name, _DEPTH)
    for name in _PER_LAYER:
        if isinstance(getattr(config, name, None), list):
            # Some derive the list from other fields.
            with contextlib.suppress(AttributeError):
                setattr(config, name, getattr(config, name)[:_DEPTH])
    if nested:
        for inner in list(vars(config).values()):
            if isinstance(inner, PretrainedConfig):
                _shallow(inner, nested - 1)
