"""The caller's own program in the process on the device, where a class or function of it is needed.

As `multiprocessing` does it: the file is run under another name than `__main__`, and what it defines stands in for it.
"""

from __future__ import annotations

import runpy
import sys
import types

NAME = "__gpumem_main__"


def load_main(file: str) -> None:
    """Run the program's definitions and let pickles find them."""
    module = types.ModuleType(NAME)
    module.__dict__.update(runpy.run_path(file, run_name=NAME))
    module.__file__ = file
    sys.modules[NAME] = sys.modules["__main__"] = module
