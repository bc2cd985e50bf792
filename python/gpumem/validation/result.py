"""`Validation`: a prediction beside what was measured, as plain data, and its receipt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpumem._core import Report
from gpumem.errors import SpecError
from gpumem.planning import Plan
from gpumem.validation.bracket import Bracket
from gpumem.validation.compare import CONFIRMED, Difference
from gpumem.validation.measurement import DeviceFacts, Measurement

SCHEMA = 1
"""Version of the JSON forms."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What came of putting a prediction to the test.

    Attributes:
        model: Name that the model was asked for by, or its class.
        fingerprint: Its structure (`gpumem.checkpointing.fingerprint`).
        loop: Settings of loop and target that are not gpumem's defaults, as JSON can hold them.
        budget_bytes: Bytes for the whole process; None for all that the device has.
        plan: The plan that was applied, or None.
        predicted: The prediction.
        device: The device and the software on it.
        measured: How the run ended, and where memory stood.
        differences: The four quantities, predicted beside measured; under a budget PyTorch's counters are predicted at
            the context that was set aside.
        requests: What the comparison request by request says, or an empty string where none was made.
        verdict: `equal` (all three of PyTorch's counters), `within the stated ends`, `outside`, `out of memory, as
            predicted`, or `not measured`.
        notes: What else to know about the numbers.
        bracket: Runs around a predicted largest batch, or None.
        gpumem: Version.
        created: Date and time (UTC, ISO 8601).
    """

    model: str
    fingerprint: str
    loop: Mapping[str, Any]
    budget_bytes: int | None
    plan: Plan | None
    predicted: Report
    device: DeviceFacts
    measured: Measurement
    differences: tuple[Difference, ...]
    requests: str
    verdict: str
    notes: tuple[str, ...]
    bracket: Bracket | None
    gpumem: str
    created: str

    @property
    def ran(self) -> bool:
        """Whether all steps ran."""
        return self.measured.ran

    @property
    def confirmed(self) -> bool:
        """Whether the run is what was predicted, within the prediction's own ends; with a bracket, that batch runs."""
        return self.verdict in CONFIRMED and (self.bracket is None or self.bracket.safe)

    @property
    def out_of_memory(self) -> str:
        """PyTorch's text, or an empty string."""
        return self.measured.message if self.measured.outcome == "out of memory" else ""

    def difference(self, quantity: str) -> Difference:
        """The row of `requested`, `allocated`, `reserved` or `device`.

        Raises:
            KeyError: there is no such quantity.
        """
        return {row.quantity: row for row in self.differences}[quantity]

    def receipt(self) -> str:
        """The evidence as JSON for people and tests: model, loop, plan, versions, device, predicted and measured."""
        report = self.predicted.to_dict()
        kept = ("model", "input", "mode", "precision", "optimizer", "criterion", "batch", "gpu", "stack", "alloc_conf")
        quantities = ("requested_peak", "allocated_peak", "reserved_peak", "device_peak", "context", "fits")
        fields = self._fields()
        for name in ("predicted", "plan"):
            fields.pop(name)
        return json.dumps(
            {
                "receipt": SCHEMA,
                **fields,
                "regions": None if self.plan is None else dict(self.plan.regions),
                "predicted": {name: report[name] for name in (*kept, *quantities)},
            },
            indent=1,
        )

    def to_json(self) -> str:
        """Everything as JSON; `from_json` reads it."""
        return json.dumps({"schema": SCHEMA, **self._fields()})

    @classmethod
    def from_json(cls, text: str) -> Validation:
        """Inverse of `to_json`.

        Raises:
            SpecError: it is something else, or of a newer gpumem.
        """
        try:
            fields = json.loads(text)
            schema = fields.pop("schema")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise SpecError("this is no validation", "Validation.to_json() writes one") from error
        if schema != SCHEMA:
            raise SpecError(f"validation schema {schema} is not supported (this gpumem reads schema {SCHEMA})")
        try:
            plan, bracket = fields["plan"], fields["bracket"]
            fields |= {
                "plan": None if plan is None else Plan.from_json(json.dumps(plan)),
                "predicted": Report.from_json(json.dumps(fields["predicted"])),
                "device": DeviceFacts(**fields["device"]),
                "measured": Measurement.from_dict(fields["measured"]),
                "differences": tuple(Difference(**row) for row in fields["differences"]),
                "notes": tuple(fields["notes"]),
                "bracket": None if bracket is None else Bracket.from_dict(bracket),
            }
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise SpecError(f"this validation is damaged: {error}") from error

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["plan"] = None if self.plan is None else json.loads(self.plan.to_json())
        fields["predicted"] = self.predicted.to_dict()
        fields["device"] = asdict(self.device)
        fields["measured"] = self.measured.to_dict()
        fields["differences"] = [asdict(row) for row in self.differences]
        fields["bracket"] = None if self.bracket is None else self.bracket.to_dict()
        fields["loop"] = dict(self.loop)
        return fields

    def __str__(self) -> str:
        from gpumem.validation.text import validation_text

        return validation_text(self)
