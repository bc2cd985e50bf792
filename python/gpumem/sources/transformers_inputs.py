"""What a transformers model takes, read from its configuration and the signature of its `forward`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

_TOKENS_DEFAULT = 512  # A common fine-tuning length; shorter where the model ends earlier.
_IMAGE_SIZE_DEFAULT = 224  # Convolutional configs state none; the size of ImageNet checkpoints.
_AUDIO_SAMPLES_DEFAULT = 160_000  # 10 s at the 16 kHz of the speech checkpoints.
_MODALITIES = ("input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values")
_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_target_positions")
_SCALAR_LABELS = ("SequenceClassification", "ImageClassification", "VideoClassification", "AudioClassification")
_TOKEN_LABELS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForTokenClassification")


def describe_inputs(model: nn.Module, mode: str, shape: Any) -> tuple[dict[str, Any], str] | None:
    """Input description of one sample by argument name, and the sentence for the report.

    Args:
        model: A `transformers.PreTrainedModel`.
        mode: `train` adds labels where the head takes them, so that the model returns its own loss.
        shape: Shape of the main input (one number: the sequence length); None for a guess.

    Returns:
        None when the main input is of a kind that a config does not describe.
    """
    import torch

    model_any: Any = model
    config = model_any.config
    main = str(model_any.main_input_name)
    takes = inspect.signature(model_any.forward).parameters
    main_shape = tuple(shape) if shape is not None else _main_shape(config, main)
    if main_shape is None:
        return None
    main_dtype = torch.int64 if main == "input_ids" else torch.float32
    inputs: dict[str, Any] = {main: (main_shape, main_dtype)}
    tokens = main_shape if main == "input_ids" else (_token_count(config),)
    if "return_loss" in takes:
        # Contrastive models pair a text with an image.
        if "pixel_values" in takes and main != "pixel_values":
            inputs["pixel_values"] = (_image_shape(_part(config, "vision_config")), torch.float32)
        if mode == "train":
            inputs["return_loss"] = True
    labels = _labels(type(model).__name__, takes, config, main, main_shape, tokens) if mode == "train" else None
    if labels is not None:
        inputs["labels"] = (labels, torch.int64)
    elif config.is_encoder_decoder and "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = (tokens, torch.int64)
    described = ", ".join(f"{name} {value[0]}" for name, value in inputs.items() if isinstance(value, tuple))
    without = [name for name in _MODALITIES if name in takes and name not in inputs]
    alone = f"; without {', '.join(without)}: what takes them does not run" if without else ""
    given = "given" if shape is not None else "guessed from the config"
    return inputs, f"input per sample ({given}): {described}; no padding, so no attention mask{alone}"


def _part(config: Any, name: str) -> Any:
    return getattr(config, name, None) or config


def _main_shape(config: Any, main: str) -> tuple[int, ...] | None:
    if main == "input_ids":
        return (_token_count(config),)
    if main == "pixel_values":
        return _image_shape(_part(config, "vision_config"))
    if main == "input_features":
        return _feature_shape(_part(config, "audio_config"))
    if main == "input_values":
        bins, frames = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
        if bins and frames and hasattr(config, "frequency_stride"):  # A spectrogram transformer.
            return (int(frames), int(bins))
        return (_AUDIO_SAMPLES_DEFAULT,)
    return None


def _token_count(config: Any) -> int:
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    lengths = [getattr(text, name, None) for name in _LENGTH_FIELDS]
    return min([_TOKENS_DEFAULT, *(n for n in lengths if isinstance(n, int) and n > 0)])


def _image_shape(config: Any) -> tuple[int, ...]:
    channels = int(getattr(config, "num_channels", None) or 3)
    size = getattr(config, "image_size", None) or _IMAGE_SIZE_DEFAULT
    sides = tuple(int(n) for n in size) if isinstance(size, (tuple, list)) else (int(size), int(size))
    frames = getattr(config, "num_frames", None)
    return (int(frames), channels, *sides) if frames else (channels, *sides)


def _feature_shape(config: Any) -> tuple[int, ...] | None:
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if bins is None or positions is None:
        return None
    # Whisper's second convolution halves the frames, so the encoder's positions are half of them.
    return (int(bins), 2 * int(positions))


def _labels(
    class_name: str,
    takes: Mapping[str, Any],
    config: Any,
    main: str,
    main_shape: tuple[int, ...],
    tokens: tuple[int, ...],
) -> tuple[int, ...] | None:
    """Shape of `labels`, or None when the head takes none (of a kind that is known)."""
    if "labels" not in takes:
        return None
    if any(task in class_name for task in _SCALAR_LABELS):
        return ()
    if class_name.endswith(_TOKEN_LABELS):
        return tokens
    if class_name.endswith("ForSemanticSegmentation") and main == "pixel_values":
        return main_shape[-2:]
    return None
