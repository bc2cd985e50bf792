"""`python -m gpumem`."""

from __future__ import annotations

import sys

from gpumem.cli import main

sys.exit(main())
