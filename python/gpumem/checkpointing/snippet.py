"""A plan as Python for people who edit their script: plain torch, no gpumem in it; no torch needed to write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import indent

from gpumem.checkpointing.options import OFFLOAD, REENTRANT, SAVED_OPS, check_option, is_selective
from gpumem.errors import UnknownNameError

_SEGMENT = re.compile(r"(.*)\[(\d+):(\d+)\]")

_HEAD = """\
# Activation checkpointing, as planned by gpumem. Run this once on `model`, before torch.compile, DDP or FSDP."""

_CHANGED = """\
def changed(module, name, value):
    before = getattr(module, name)
    setattr(module, name, value)
    return functools.partial(setattr, module, name, before)"""

_KEPT_STATISTICS = """\
def keep_batch_norm_statistics(module, undo):
    # Run again in backward, batch norm would update its running statistics a second time.
    for norm in module.modules():
        if isinstance(norm, torch.nn.modules.batchnorm._BatchNorm) and norm.training and norm.track_running_stats:
            undo.callback(changed(norm, "momentum", 0.0))
            undo.callback(changed(norm, "num_batches_tracked", None))"""

_OUT_OF_PLACE = """\
def write_out_of_place(module, undo):
    # What is kept must not be overwritten.
    for inner in module.modules():
        if getattr(inner, "inplace", False) is True:
            undo.callback(changed(inner, "inplace", False))"""

_REGION = """\
def checkpoint_region(module, {signature}**options):
    forward = module.forward{before}

    @functools.wraps(forward)
    def region(*args, **kwargs):
        if not (module.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        # Taken apart, since a list may be extended before the region is run again; a tensor given twice is one.
        given, structure = pytree.tree_flatten((args, kwargs))
        leaves = list({{id(leaf): leaf for leaf in given}}.values())
        places = [next(i for i, leaf in enumerate(leaves) if leaf is value) for value in given]
        first = [(args, kwargs)]
        del given
        if any(type(leaf).__name__.endswith("Cache") for leaf in leaves):
            raise ValueError("run again, a region would fill the key-value cache twice: train with use_cache=False")
        ran = False

        def run(*leaves):
            nonlocal ran
            args, kwargs = first.pop() if first else pytree.tree_unflatten([leaves[i] for i in places], structure)
            with contextlib.ExitStack() as undo:{around}
                ran = True
                return forward(*args, **kwargs)

        return {call}

    module.forward = region"""

_REENTRANT = """\
def reentrant(run, *leaves, **options):
    # Gradients reach the parameters only if some input asks for one.
    trained = torch.empty(0, requires_grad=True)
    structure = None

    def flat(trained, *leaves):
        nonlocal structure
        results, structure = pytree.tree_flatten(run(*leaves))
        return tuple(results)

    results = checkpoint(flat, trained, *leaves, use_reentrant=True, **options)
    return pytree.tree_unflatten(list(results), structure)"""

_OFFLOAD = """\
def offload_region(module, least_bytes=1 << 20):
    # What autograd saves of the region waits in pinned memory; each storage is sent once, weights and buffers stay.
    forward = module.forward

    @functools.wraps(forward)
    def region(*args, **kwargs):
        if not (module.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        stays = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}
        sent = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata in stays or not tensor.is_cuda or storage.nbytes() < least_bytes:
                return tensor
            known = sent.get(storage._cdata)
            if known is None or known["of"].expired() or known["version"] != tensor._version:
                flat = tensor.detach().as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0)
                host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
                host.copy_(flat, non_blocking=True)
                known = {"of": StorageWeakRef(storage), "version": tensor._version, "host": host, "at": tensor.device}
                sent[storage._cdata] = known
            return known, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()

        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            known, dtype, *view = packed
            if "host" in known:
                known["back"] = known.pop("host").to(known["at"], non_blocking=True)
            return known["back"].view(dtype).as_strided(*view)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = forward(*args, **kwargs)
        sent.clear()
        return out

    module.forward = region"""

_MEMBERS = """\
def checkpoint_members(sequential, runs):
    # Members start to stop - 1 of a sequence as one region.
    members = list(sequential)
    regions, steps, position = [], [], 0
    for (start, stop), options in sorted(runs.items()):
        region = torch.nn.Sequential(*members[start:stop])
        {region}
        regions.append(region)
        steps += [*members[position:start], region]
        position = stop
    steps += members[position:]

    def forward(value):
        for region in regions:
            region.training = sequential.training
        for step in steps:
            value = step(value)
        return value

    sequential.forward = forward"""

_MEMBERS_CALL = """\
checkpoint_members(
    model.get_submodule("{path}"),
    {{
{runs}
    }},
)"""

_KEEP = """\
def {function}(context, op, *args, **kwargs):
    schema = getattr(op, "_schema", None)
    if (schema.name if schema else op.__name__) not in {constant}:
        return CheckpointPolicy.PREFER_RECOMPUTE
    named = dict(zip((argument.name for argument in schema.arguments), args)) if schema else {{}}
    # What draws random numbers runs again, so that later operations draw the same ones.
    drawn = {{**named, **kwargs}}.get("dropout_p")
    return CheckpointPolicy.PREFER_RECOMPUTE if drawn else CheckpointPolicy.MUST_SAVE"""

_CACHES_OFF = """\
# Key-value caches are filled and never read in training, and a region would fill them twice.
for module in model.modules():
    if getattr(getattr(module, "config", None), "use_cache", False) is True:
        module.config.use_cache = False"""

_STEPS: Mapping[str, str] = {
    "fp32": "",
    "tf32": "torch.backends.cuda.matmul.allow_tf32 = True",
    "amp-bf16": """\
# In the training loop:
#     with torch.autocast("cuda", dtype=torch.bfloat16):
#         loss = criterion(model(inputs), target)
#     loss.backward()
#     optimizer.step()""",
    "amp-fp16": """\
scaler = torch.amp.GradScaler("cuda")
# In the training loop:
#     with torch.autocast("cuda", dtype=torch.float16):
#         loss = criterion(model(inputs), target)
#     scaler.scale(loss).backward()
#     scaler.step(optimizer)
#     scaler.update()""",
    "fp16": "model.to(torch.float16)",
    "bf16": "model.to(torch.bfloat16)",
}


def code(
    regions: Mapping[str, str],
    precision: str = "fp32",
    *,
    preserve_rng_state: bool = True,
    batch_norm: bool = True,
    caches_off: bool = False,
) -> str:
    """Write the snippet that does to `model` what `apply_regions(model, regions)` does.

    Args:
        regions: Names of regions and their options, as for `apply_regions`.
        precision: The loop's precision, whose lines are added (commented out where they belong into the loop).
        preserve_rng_state: As for `apply_regions`.
        batch_norm: Whether to keep batch norm's running statistics from being updated twice; False makes the snippet
            shorter for models without batch norm.
        caches_off: Whether to switch `use_cache` of a transformers model off, with which regions do not run.

    Returns:
        Python source that expects `model`. Spectral norm and reentrant regions that return objects of unknown classes
        are left to `apply_regions`.

    Raises:
        UnknownNameError: an option or precision that does not exist.
    """
    if precision not in _STEPS:
        raise UnknownNameError(f"unknown precision {precision!r}", f"one of {', '.join(_STEPS)}")
    options = {name: check_option(name, option) for name, option in regions.items()}
    precise = _STEPS[precision]
    if not options:
        text = ["# The plan keeps all activations: nothing is checkpointed."]
        text += [_CACHES_OFF] if caches_off else []
        return "\n".join([*text, "import torch", "", precise] if precise else text) + "\n"
    selective = [option for option in SAVED_OPS if option in options.values()]
    reentrant = REENTRANT in options.values()
    offload = OFFLOAD in options.values()
    blocks = [_imports(bool(selective), offload)]
    blocks += [_policy(option) for option in selective]
    blocks += [_CHANGED] if batch_norm or selective else []
    blocks += [_KEPT_STATISTICS] if batch_norm else []
    blocks += [_OUT_OF_PLACE] if selective else []
    blocks += [_REENTRANT] if reentrant else []
    if set(options.values()) != {OFFLOAD}:
        blocks.append(_region_function(batch_norm, bool(selective), reentrant))
    blocks += [_OFFLOAD] if offload else []
    calls = _members_calls(options, preserve_rng_state)
    one = "checkpoint_region(region, **options)"
    either = f"offload_region(region) if options is None else {one}"
    blocks += [_MEMBERS.replace("{region}", either if offload else one)] if calls else []
    blocks.append("\n".join(calls + _module_calls(options, preserve_rng_state)))
    blocks += [_CACHES_OFF] if caches_off else []
    blocks += [precise] if precise else []
    return _HEAD + "\n" + "\n\n\n".join(blocks) + "\n"


def _imports(selective: bool, offload: bool) -> str:
    names = "CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts" if selective else "checkpoint"
    return (
        "import contextlib\nimport functools\n\nimport torch\n"
        + ("from torch.multiprocessing.reductions import StorageWeakRef\n" if offload else "")
        + f"from torch.utils import _pytree as pytree\nfrom torch.utils.checkpoint import {names}"
    )


def _region_function(batch_norm: bool, selective: bool, reentrant: bool) -> str:
    """The function that makes a module a region, with what the plan's options need."""
    before, around, signature = "", "", ""
    if reentrant:
        signature += "launch=functools.partial(checkpoint, use_reentrant=False), "
    if selective:
        signature += "keep=None, "
        before = (
            "\nif keep is not None:"
            '\n    options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, keep)'
        )
        around += "\nif keep is not None:\n    write_out_of_place(module, undo)"
    if batch_norm:
        around += "\nif ran:\n    keep_batch_norm_statistics(module, undo)"
    call = (
        "launch(run, *leaves, **options)" if reentrant else "checkpoint(run, *leaves, use_reentrant=False, **options)"
    )
    return _REGION.format(
        signature=signature, before=indent(before, " " * 4), around=indent(around, " " * 16), call=call
    )


def _words(option: str) -> tuple[str, str]:
    """Names of the set of operations and of the policy function of a selective option."""
    word = option.removeprefix("save:")
    return f"{word.upper()}_OPS", f"keep_{word}"


def _policy(option: str) -> str:
    constant, function = _words(option)
    names = "".join(f"{name!r},\n".replace("'", '"') for name in sorted(SAVED_OPS[option]))
    return f"{constant} = {{\n{indent(names, '    ')}}}\n\n\n" + _KEEP.format(function=function, constant=constant)


def _keywords(option: str, preserve_rng_state: bool) -> list[str]:
    """Arguments of `checkpoint_region` for an option."""
    keywords = ["launch=reentrant"] if option == REENTRANT else []
    keywords += [f"keep={_words(option)[1]}"] if is_selective(option) else []
    return keywords + ([] if preserve_rng_state else ["preserve_rng_state=False"])


def _members_calls(options: Mapping[str, str], preserve_rng_state: bool) -> list[str]:
    """A call for each sequence of which runs of members are regions."""
    runs: dict[str, list[str]] = {}
    for name, option in options.items():
        if match := _SEGMENT.fullmatch(name):
            keywords = f"dict({', '.join(_keywords(option, preserve_rng_state))})"
            run = f"({match[2]}, {match[3]}): {None if option == OFFLOAD else keywords},"
            runs.setdefault(match[1], []).append(run)
    return [_MEMBERS_CALL.format(path=path, runs=indent("\n".join(parts), " " * 8)) for path, parts in runs.items()]


def _module_calls(options: Mapping[str, str], preserve_rng_state: bool) -> list[str]:
    """A loop over the modules of each option; after the members, which a region around them then includes."""
    lines = []
    for option in dict.fromkeys(options.values()):
        names = [name for name in options if options[name] == option and not _SEGMENT.fullmatch(name)]
        if names:
            arguments = ", ".join(["model.get_submodule(path)", *_keywords(option, preserve_rng_state)])
            paths = "".join(f'    "{name}",\n' for name in names)
            call = (
                "offload_region(model.get_submodule(path))" if option == OFFLOAD else f"checkpoint_region({arguments})"
            )
            lines += [f"for path in (\n{paths}):", f"    {call}"]
    return lines
