"""gpumem's compiled core."""

from typing import Any, final

__all__ = [
    "GpuProfile",
    "ModelSpec",
    "Quantity",
    "RegionSpace",
    "Report",
    "find_gpu",
    "gpus",
    "parse_alloc_conf",
    "replay_history",
]

@final
class GpuProfile:
    """One GPU profile."""

    @property
    def name(self) -> str: ...
    @property
    def torch_name(self) -> str: ...
    @property
    def aliases(self) -> list[str]: ...
    @property
    def capability(self) -> tuple[int, int]: ...
    @property
    def sm_count(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def total_bytes_measured(self) -> bool: ...
    @property
    def total_bytes_source(self) -> str: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Quantity:
    """Peak bytes: the likely value and both ends of its uncertainty."""

    @property
    def low(self) -> int: ...
    @property
    def likely(self) -> int: ...
    @property
    def high(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class RegionSpace:
    """All checkpoint plans of one traced loop."""

    @staticmethod
    def from_traces(paths: list[str], variants: list[Any], /) -> RegionSpace: ...
    @staticmethod
    def from_json(text: str, /) -> RegionSpace: ...
    def to_json(self) -> str: ...
    @property
    def paths(self) -> list[str]: ...
    def is_allowed(self, region: int, variant: int) -> bool: ...
    def splice(self, choice: list[int]) -> ModelSpec: ...
    def recompute_ps(self, choice: list[int], batch: int, *, gpu: str | None = None) -> int: ...
    def cheapest_plan(
        self,
        batch: int,
        *,
        plays: int | None = None,
        gpu: str | None = None,
        budget: int | str | None = None,
        stack: str | None = None,
        context: int | str | None = None,
        alloc_conf: str | None = None,
        cudnn_benchmark: bool = False,
        conv_workspaces: str = "auto",
    ) -> tuple[list[int], int, int, int, int] | None: ...
    def chain_ways(
        self, batch: int, /, *, gpu: str | None = None
    ) -> tuple[list[list[tuple[int, int, int, int, int, int]]], int]: ...
    def wanted_segments(
        self, candidates: list[tuple[int, int]], whole: int, most: int, batch: int, /, *, gpu: str | None = None
    ) -> list[list[int]]: ...
    def pareto_front(
        self,
        batch: int,
        *,
        points: int,
        gpu: str | None = None,
        stack: str | None = None,
        context: int | str | None = None,
        alloc_conf: str | None = None,
        cudnn_benchmark: bool = False,
        conv_workspaces: str = "auto",
    ) -> tuple[list[tuple[list[int], int, int]], int]: ...
    def plan_table(
        self,
        choices: bytes,
        batches: list[int],
        *,
        threads: int = 1,
        gpu: str | None = None,
        stack: str | None = None,
        cudnn_benchmark: bool = False,
    ) -> list[bytes]: ...
    def max_batch(
        self,
        *,
        gpu: str | None = None,
        budget: int | str | None = None,
        stack: str | None = None,
        context: int | str | None = None,
        alloc_conf: str | None = None,
        cudnn_benchmark: bool = False,
        conv_workspaces: str = "auto",
    ) -> int: ...
    def smallest_bytes(
        self,
        batch: int,
        *,
        gpu: str | None = None,
        budget: int | str | None = None,
        stack: str | None = None,
        context: int | str | None = None,
        alloc_conf: str | None = None,
        cudnn_benchmark: bool = False,
        conv_workspaces: str = "auto",
    ) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Report:
    """The answer to one what-if."""

    @property
    def batch(self) -> int: ...
    @property
    def requested_peak(self) -> Quantity: ...
    @property
    def allocated_peak(self) -> Quantity: ...
    @property
    def reserved_peak(self) -> Quantity: ...
    @property
    def device_peak(self) -> Quantity: ...
    @property
    def budget_bytes(self) -> int | None: ...
    @property
    def fits(self) -> bool | None: ...
    @property
    def peak_phase(self) -> str: ...
    @property
    def breakdown(self) -> dict[str, int]: ...
    @property
    def assumptions(self) -> list[str]: ...
    @property
    def unsupported(self) -> list[str]: ...
    @property
    def layers(self) -> list[dict[str, Any]]: ...
    @property
    def phases(self) -> list[dict[str, Any]]: ...
    @property
    def out_of_memory(self) -> dict[str, Any] | None: ...
    def to_dict(self) -> dict[str, Any]: ...
    def to_json(self) -> str: ...
    @staticmethod
    def from_json(text: str, /) -> Report: ...
    def __reduce__(self) -> tuple[Any, tuple[str]]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class ModelSpec:
    """A traced loop, ready for any number of what-ifs."""

    @staticmethod
    def from_traces(
        structure_arguments: dict[str, Any],
        trace_arguments: list[tuple[int, list[int], list[int], list[list[int]], list[tuple[int, int]]]],
        /,
    ) -> ModelSpec: ...
    @staticmethod
    def from_json(text: str, /) -> ModelSpec: ...
    def to_json(self) -> str: ...
    def about_json(self) -> str: ...
    @property
    def traced_batches(self) -> list[int]: ...
    @property
    def only_batch(self) -> int | None: ...
    @property
    def ops(self) -> list[str]: ...
    @property
    def layer_paths(self) -> list[str]: ...
    def estimate(
        self,
        batch: int,
        *,
        gpu: str | None = None,
        budget: str | float | None = None,
        stack: str | None = None,
        context: str | float | None = None,
        alloc_conf: str | None = None,
        library_workspaces: bool = True,
        cudnn_benchmark: bool = False,
        conv_workspaces: str = "auto",
    ) -> Report: ...
    def figures(
        self, batches: list[int], targets: list[dict[str, Any]], *, upper_only: bool = False, threads: int = 1
    ) -> tuple[list[bytes], bytes, list[tuple[int, Any]]]: ...
    def fits(
        self,
        batch: int,
        *,
        gpu: str | None = None,
        budget: str | float | None = None,
        stack: str | None = None,
        context: str | float | None = None,
        alloc_conf: str | None = None,
        library_workspaces: bool = True,
        cudnn_benchmark: bool = False,
        conv_workspaces: str = "auto",
    ) -> bool: ...
    def max_batch(
        self,
        *,
        gpu: str | None = None,
        budget: str | float | None = None,
        stack: str | None = None,
        context: str | float | None = None,
        alloc_conf: str | None = None,
        library_workspaces: bool = True,
        cudnn_benchmark: bool = False,
        conv_workspaces: str = "auto",
    ) -> int: ...
    def timeline(
        self,
        batch: int,
        *,
        gpu: str | None = None,
        budget: str | float | None = None,
        stack: str | None = None,
        context: str | float | None = None,
        alloc_conf: str | None = None,
        library_workspaces: bool = True,
        cudnn_benchmark: bool = False,
        conv_workspaces: str = "auto",
    ) -> list[tuple[int, int, int, int, int, int, int, int, int]]: ...
    def __reduce__(self) -> tuple[Any, tuple[str]]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

def gpus() -> list[GpuProfile]:
    """All GPU profiles."""

def find_gpu(name: str, /) -> GpuProfile:
    """The profile with this name or alias."""

def parse_alloc_conf(text: str, /) -> str:
    """The canonical form of a `PYTORCH_CUDA_ALLOC_CONF` string."""

def replay_history(
    events: list[tuple[str, int, int, int]],
    last: list[tuple[int, int, int, bool]],
    /,
    *,
    capacity_bytes: int | None = None,
    ties_by_address: bool = False,
) -> dict[str, Any]:
    """Replays a history that began with an empty allocator; the result's `difference` is empty when all of it is equal.

    Args:
        events: `(action, address, bytes, stream)` with the actions of PyTorch's snapshots.
        last: Segment address, block address, bytes and whether it is handed out, of every block at the end, by address.
        capacity_bytes: What the driver hands out in all.
        ties_by_address: The rule of versions of PyTorch before the one that counts segments.
    """
