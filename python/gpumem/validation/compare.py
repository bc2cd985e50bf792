"""Predicted beside measured: the four quantities, their differences, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpumem._core import Report
from gpumem.units import format_bytes
from gpumem.validation.measurement import DeviceFacts, Measurement
from gpumem.validation.sequence import Requests

EQUAL = "equal"
WITHIN = "within the stated ends"
OUTSIDE = "outside"
AS_PREDICTED = "out of memory, as predicted"
NOT_MEASURED = "not measured"
CONFIRMED = (EQUAL, WITHIN, AS_PREDICTED)
QUANTITIES = ("requested", "allocated", "reserved", "device")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One quantity's peak, in bytes.

    Attributes:
        quantity: `requested`, `allocated`, `reserved` or `device`.
        low: Lower end of the prediction.
        likely: The prediction.
        high: Its upper end.
        measured: What was measured.
        cause: Why they differ, where that is known.
    """

    quantity: str
    low: int
    likely: int
    high: int
    measured: int
    cause: str = ""

    @property
    def difference_bytes(self) -> int:
        """Measured less predicted."""
        return self.measured - self.likely

    @property
    def status(self) -> str:
        """`equal`, `within the stated ends` or `outside`."""
        if self.measured == self.likely:
            return EQUAL
        return WITHIN if self.low <= self.measured <= self.high else OUTSIDE


def differences(
    predicted: Report, limited: Report, measurement: Measurement, device: DeviceFacts, requests: Requests | None
) -> tuple[Difference, ...]:
    """The four quantities, with causes.

    Args:
        predicted: The prediction, from which device bytes are taken: the context is a range.
        limited: The same with the context that was set aside in the run, from which PyTorch's counters are taken: at
            the limit, what is reserved depends on it.
        measurement: The run.
        device: Where it ran.
        requests: The requests one by one, where they were compared.
    """
    rows = []
    for name in QUANTITIES:
        peak: Any = getattr(predicted if name == "device" else limited, f"{name}_peak")
        measured: int = getattr(measurement, f"{name}_peak_bytes")
        row = Difference(quantity=name, low=peak.low, likely=peak.likely, high=peak.high, measured=measured)
        cause = "" if row.status == EQUAL else _cause(row, predicted, measurement, device, requests)
        rows.append(Difference(**{**vars(row), "cause": cause}))
    return tuple(rows)


def verdict(predicted: Report, measurement: Measurement, rows: tuple[Difference, ...]) -> str:
    """What the run says about the prediction: one of the constants of this module."""
    if measurement.outcome == "out of memory":
        return AS_PREDICTED if predicted.fits is False else OUTSIDE
    if not measurement.ran:
        return NOT_MEASURED
    statuses = {row.quantity: row.status for row in rows}
    if OUTSIDE in statuses.values():
        return OUTSIDE
    # The context is never known to the byte, PyTorch's counters are.
    return EQUAL if all(statuses[name] == EQUAL for name in QUANTITIES if name != "device") else WITHIN


def _cause(
    row: Difference, predicted: Report, measurement: Measurement, device: DeviceFacts, requests: Requests | None
) -> str:
    if not measurement.ran:
        return f"the run ended in {measurement.ended_in}" if measurement.ended_in else "the run did not end"
    if row.quantity == "device":
        return _cause_outside(predicted, measurement, device)
    if row.quantity == "reserved" and measurement.retries:
        return f"cached segments were given back {measurement.retries} times at the limit"
    said = [] if requests is None else [requests.text()]
    if measurement.guessed:
        said.append(f"the virtual device guessed {', '.join(measurement.guessed)}")
    return "; ".join(said)


def _cause_outside(predicted: Report, measurement: Measurement, device: DeviceFacts) -> str:
    """What the process takes outside PyTorch's segments is a range from other people's cards."""
    context: dict[str, int] = predicted.to_dict()["context"]
    outside = measurement.outside_bytes
    ends = f"{format_bytes(context['low'])} to {format_bytes(context['high'])}"
    text = f"context and libraries: {format_bytes(outside)}, predicted {format_bytes(context['likely'])} ({ends})"
    return f"{text}; measured as {device.measured_by}"
