"""Results of a long run as JSON lines: what is there is not measured again."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Result = dict[str, Any]


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in this block after `seconds` (main thread, Unix)."""

    def expired(signum: int, frame: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Journal:
    """Results by key; a later line for the same key replaces an earlier one.

    Attributes:
        path: The file of JSON lines.
        results: Key to result, in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, Result] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                result = json.loads(line)
                self.results[result["key"]] = result

    def add(self, key: str, result: Result) -> None:
        """Append one result."""
        self.results[key] = {"key": key, **result}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.results[key]) + "\n")

    def run(self, keys: Iterable[str], measure: Callable[[str], Result], seconds: int, again: str) -> None:
        """Measure every key that is missing.

        Args:
            keys: What is wanted.
            measure: Returns the result of one key; what it raises becomes the result's `error`.
            seconds: Time limit of one key.
            again: `none`, `failed` (results with an error too) or `all`.
        """
        for key in keys:
            done = self.results.get(key)
            if done is not None and (again == "none" or (again == "failed" and "error" not in done)):
                continue
            try:
                with time_limit(seconds):
                    result = measure(key)
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
            self.add(key, result)
            print(key, json.dumps(result)[:200], flush=True)
