"""`hf:NAME`: transformers models from their configuration. Only local files are read, and of those only the config."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem.errors import InputError, UnknownNameError
from gpumem.sources.source import Source, load, nearest
from gpumem.sources.transformers_inputs import describe_inputs

if TYPE_CHECKING:
    from torch import nn

_PACKAGE = "transformers"
# Tried in this order when the config names no architecture: the task that a model type is trained for comes first.
_HEADS = (
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForZeroShotImageClassification",
    "AutoModelForImageClassification",
    "AutoModelForVideoClassification",
    "AutoModelForAudioClassification",
    "AutoModelForSemanticSegmentation",
    "AutoModelForImageTextToText",
    "AutoModel",
)


def resolve(name: str, mode: str, input: Any) -> Source:
    """Build a transformers model from its configuration, with a head that can be trained.

    Raises:
        UnknownNameError: if no configuration is at hand for this name.
        InputError: if transformers is not installed, or the model cannot be built.
    """
    from gpumem.sources.empty_build import build_empty

    transformers = load("transformers", _PACKAGE)
    config, said_by = _config(transformers, name)
    model_class, build = find_head(transformers, config)
    try:
        # Loops choose their precision; a dtype in the config is the one of the published weights.
        model = build_empty(build).float()
    except Exception as error:
        raise InputError(
            f"hf:{name}: {model_class} could not be built from its config: {type(error).__name__}: {error}",
            "build it yourself in a function and pass package.module:function",
        ) from error
    assumptions = [said_by]
    if input is None or _is_shape(input):
        guess = describe_inputs(model, mode, input)
        input = guess[0] if guess is not None else None
        assumptions += [guess[1]] if guess is not None else []
    return Source(model, input, f"transformers {type(model).__name__} ({name})", assumptions)


def guess_input(model: nn.Module, mode: str) -> tuple[Any, str] | None:
    """The input of an instance of a transformers model (also one that peft wraps), from its configuration."""
    known = _transformers_model(model)
    return None if known is None else describe_inputs(known, mode, None)


def complete_input(model: nn.Module, shape: tuple[int, ...], mode: str) -> tuple[Any, str] | None:
    """The input of an instance that takes token ids, of which the shape alone is given; None for other models."""
    known: Any = _transformers_model(model)
    return describe_inputs(known, mode, shape) if known is not None and known.main_input_name == "input_ids" else None


def _transformers_model(model: nn.Module) -> nn.Module | None:
    transformers, peft = sys.modules.get(_PACKAGE), sys.modules.get("peft")
    if peft is not None and isinstance(model, peft.PeftModel):
        model = model.get_base_model()
    return model if transformers is not None and isinstance(model, transformers.PreTrainedModel) else None


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value)


def _config(transformers: Any, name: str) -> tuple[Any, str]:
    """The configuration that `name` means, and the sentence that says where it is from."""
    known = load("transformers.models.auto.configuration_auto", _PACKAGE).CONFIG_MAPPING
    try:
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True), f"config: local files of {name}"
    except (OSError, ValueError) as error:
        if Path(name).is_dir() and name not in known:
            raise InputError(f"hf:{name}: its config.json cannot be used: {error}") from error
    if name in known:
        config = known[name]()
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            # Every published checkpoint has one; labels are shifted with it, and its value decides no size.
            config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
        return config, f"config: transformers' defaults for the model type {name}, not those of a published checkpoint"
    wanted = name.rpartition("/")[2].lower()
    by_prefix = sorted((t for t in known if wanted.startswith(t.lower())), key=len, reverse=True)
    near = by_prefix[:1] or nearest(wanted, known)
    raise UnknownNameError(
        f"no configuration at hand for hf:{name} (nothing is downloaded)",
        f"fetch it once with `hf download {name} config.json`, give a local folder that holds its config.json, or a "
        f"transformers model type with its default sizes ({', '.join(near) or 'such as gpt2'})",
    )


def find_head(transformers: Any, config: Any) -> tuple[str, Callable[[], nn.Module]]:
    """The name of the class that is trained with this configuration, and a function that builds it."""
    for architecture in config.architectures or ():
        model_class = getattr(transformers, architecture, None)
        if model_class is not None:
            return architecture, functools.partial(model_class._from_config, config)
    for head in _HEADS:
        auto = getattr(transformers, head, None)
        if auto is not None and type(config) in auto._model_mapping:
            classes = auto._model_mapping[type(config)]
            # Of several (with and without a teacher's token), `from_config` wants the config to name one.
            model_class = classes[0] if isinstance(classes, (tuple, list)) else classes
            return head, functools.partial(model_class._from_config, config)
    raise InputError(
        f"transformers has no model class that {type(config).__name__} alone can build",
        "build it yourself in a function and pass package.module:function",
    )
