"""What a plan changes in the training loop itself, as lines to paste."""

from __future__ import annotations

_CHANNELS_LAST = """
# Model and image inputs in channels_last:
model.to(memory_format=torch.channels_last)
#     inputs = inputs.to("cuda", memory_format=torch.channels_last)
"""

_ZERO = """
# In the training loop:
#     optimizer.zero_grad(set_to_none=False)
"""

_IN_BACKWARD = """
# The training loop calls neither optimizer.step() nor zero_grad(); call this once, after model.cuda(), with
# lambda parameters: torch.optim.AdamW(parameters, foreach=False), or whatever your optimizer is.
def step_in_backward(model, make_optimizer):
    def now(optimizer, parameter):
        optimizer.step()
        optimizer.zero_grad()

    for parameter in model.parameters():
        if parameter.requires_grad:
            optimizer = make_optimizer([parameter])
            parameter.register_post_accumulate_grad_hook(functools.partial(now, optimizer))
"""


def loop_code(*, channels_last: bool, zero_grad: str, step_in_backward: bool) -> str:
    """The lines, none for PyTorch's defaults; the arguments are those of `gpumem.extract`."""
    text = ""
    if channels_last or step_in_backward:
        text += "\nimport functools\n\nimport torch\n"
    text += _CHANNELS_LAST if channels_last else ""
    text += _ZERO if zero_grad == "zero" else ""
    text += _IN_BACKWARD if step_in_backward else ""
    return text
