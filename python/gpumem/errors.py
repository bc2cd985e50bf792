"""Every error gpumem raises. Each states the fact; `hint` says what to do about it.

The classes have a built-in parent where one fits, carry their facts as attributes, and pickle (Ray workers).
"""

from __future__ import annotations


class GpumemError(Exception):
    """Base of all errors raised by gpumem.

    Attributes:
        hint: What to do about it, or an empty string.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class BudgetError(GpumemError, ValueError):
    """A budget, size or fraction that cannot be understood or used."""


class UnknownNameError(GpumemError, ValueError):
    """A GPU, optimizer, precision, model or option name that gpumem does not know; the hint has the nearest."""


class StackError(GpumemError, ValueError):
    """A target software stack (torch and CUDA version) that cannot be parsed or is not supported."""


class AllocConfError(GpumemError, ValueError):
    """A PYTORCH_CUDA_ALLOC_CONF string that PyTorch would refuse, or whose allocator is not simulated."""


class InputError(GpumemError, ValueError):
    """The model's input cannot be determined, or the model refuses it."""


class SpecError(GpumemError, ValueError):
    """A ModelSpec that is damaged, of an unknown schema version, or asked for something it does not hold."""


class ExtractionError(GpumemError, RuntimeError):
    """The model could not be traced; the model's own exception is the `__cause__`."""


class DataDependentError(ExtractionError):
    """The model needs a tensor's values (`.item()`, a boolean mask, `nonzero`), which a trace without data has not.

    Attributes:
        module_path: Dotted path of the module that asked.
        op: ATen name of the operation.
    """

    def __init__(self, message: str, hint: str = "", module_path: str = "", op: str = "") -> None:
        super().__init__(message, hint)
        self.args = (message, hint, module_path, op)
        self.module_path = module_path
        self.op = op


class BatchDependentError(SpecError):
    """The model's sequence of allocations changes with the batch size, so a spec answers only for traced sizes."""


class PlanError(GpumemError, ValueError):
    """A plan that is damaged, of an unknown schema version, or asked for with axes that contradict each other."""


class RegionError(GpumemError, ValueError):
    """A checkpointed region that a model does not have, or that cannot be run as one."""


class ModelMismatchError(GpumemError, ValueError):
    """A plan meets another model than the one it was made for; the message names the first difference."""


class VirtualDeviceError(GpumemError, RuntimeError):
    """The virtual GPU cannot be used: not on this platform, with this PyTorch, or as asked for."""


class CudnnError(GpumemError, RuntimeError):
    """The installed cuDNN was to answer about convolutions and cannot: it is missing, too old, or not the target's."""


class ValidationError(GpumemError, RuntimeError):
    """A prediction could not be put to the test: no such device, or the process for it does not start."""


class DoesNotFitError(GpumemError, RuntimeError):
    """No batch size fits the budget.

    Attributes:
        budget_bytes: The budget that was given.
        smallest_bytes: Device bytes needed at batch size 1.
    """

    def __init__(self, message: str, hint: str = "", budget_bytes: int = 0, smallest_bytes: int = 0) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, budget_bytes, smallest_bytes)
        self.budget_bytes = budget_bytes
        self.smallest_bytes = smallest_bytes
