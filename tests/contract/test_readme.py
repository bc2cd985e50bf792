"""What README promises works: its commands exist and its Python runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from gpumem.cli.commands import app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


def _blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def _targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_make_targets_that_are_named_exist() -> None:
    named = {
        target for document in DOCUMENTS for target in re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(_code(document)))
    }
    assert {"demo", "test"} <= named
    assert named <= _targets()


def _code(document: str) -> list[str]:
    text = (ROOT / document).read_text()
    return [*re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL), *re.findall(r"`([^`\n]+)`", text)]


def test_the_first_screen_has_the_two_commands() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:40]
    assert {"make demo", "make test"} <= {line.partition("#")[0].strip() for line in first_screen}


def test_every_target_is_documented_and_phony() -> None:
    text = (ROOT / "Makefile").read_text()
    documented = set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    phony = set(text.rpartition(".PHONY:")[2].split())
    assert documented == phony == _targets()


@pytest.mark.parametrize("code", _blocks("README.md", "python"))
def test_python_examples_run(code: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)


def test_command_lines_use_options_that_exist() -> None:
    import typer

    group: Any = typer.main.get_command(app)
    lines = [line for block in _blocks("README.md", "sh") for line in block.splitlines() if "gpumem " in line]
    assert len(lines) >= 3
    for line in lines:
        words = shlex.split(line.partition("gpumem ")[2], comments=True)
        command = group.commands[words[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
