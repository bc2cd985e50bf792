"""Traces in parallel: any executor with `submit` will do, the default is a pool of processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeAlias

from gpumem.errors import ExtractionError, InputError
from gpumem.sweeping.cache import Cache
from gpumem.sweeping.job import Job, Traced, run

# A process has to import PyTorch before its first trace: fewer jobs are done sooner here.
_FEWEST_FOR_PROCESSES = 8

OnTraced: TypeAlias = Callable[[Job, Traced], None]


class Executor(Protocol):
    """What is used of `concurrent.futures.Executor`; Ray's and Dask's executors have it."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """A future with `result()`."""


def check_executor(executor: Any) -> None:
    """Refuse what is no executor.

    Raises:
        InputError: it has no `submit`.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise InputError(
            f"executor must have a method submit, and {type(executor).__name__} has none",
            "pass a concurrent.futures executor, client.get_executor() of Dask, or None for processes on this machine",
        )


def traced(jobs: Mapping[Any, Job], cache: Cache, executor: Executor | None, on_traced: OnTraced) -> dict[Any, Traced]:
    """Every job's trace, from the cache where it is kept.

    What was done is kept at once, so that an interrupted sweep goes on where it stopped.

    Args:
        jobs: Key to job.
        cache: Where traces are looked for and kept.
        executor: Runs the jobs; None for processes on this machine.
        on_traced: Called after each job that had to be run.

    Raises:
        ExtractionError: the processes end before they answer.
        KeyboardInterrupt: Ctrl-C; jobs that have not begun are cancelled and own processes ended.
    """
    found: dict[Any, Traced] = {}
    missing: dict[Any, Job] = {}
    for key, job in jobs.items():
        kept = cache.find(job)
        if kept is None:
            missing[key] = job
        else:
            found[key] = kept
    runs = _here(missing) if executor is None and _is_small(missing) else _elsewhere(missing, executor)
    # Closed at once when this is interrupted: that cancels what has not begun.
    with contextlib.closing(runs):
        for key, done in runs:
            found[key] = done
            cache.keep(missing[key], done)
            on_traced(missing[key], done)
    return found


def _is_small(jobs: Mapping[Any, Job]) -> bool:
    return len(jobs) < _FEWEST_FOR_PROCESSES or (os.cpu_count() or 1) == 1


def _here(jobs: Mapping[Any, Job]) -> Generator[tuple[Any, Traced], None, None]:
    for key, job in jobs.items():
        yield key, run(job)


def _elsewhere(jobs: Mapping[Any, Job], executor: Executor | None) -> Generator[tuple[Any, Traced], None, None]:
    with contextlib.ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(_processes(min(len(jobs), os.cpu_count() or 1)))
        futures: dict[Any, Any] = {}
        try:
            for key, job in jobs.items():
                futures[executor.submit(run, job)] = key
            for future in _as_done(list(futures)):
                yield futures[future], _result(future)
        finally:
            for future in futures:
                if hasattr(future, "cancel"):
                    future.cancel()


def _as_done(futures: list[Any]) -> Iterator[Any]:
    if all(isinstance(future, Future) for future in futures):
        return as_completed(futures)
    # Another library's: waited for one after the other.
    return iter(futures)


def _result(future: Any) -> Traced:
    try:
        done = future.result()
    except BrokenProcessPool as error:
        raise ExtractionError(
            "a process that traces models ended before it answered: it was killed (no memory left?), or it ran this "
            "script anew",
            'a script that sweeps needs `if __name__ == "__main__":` around what it does; or pass executor=',
        ) from error
    except (pickle.PicklingError, AttributeError, ImportError, TypeError) as error:
        # The factory cannot be found over there.
        return Traced(error=(f"a worker could not read the job: {type(error).__name__}: {error}", ""))
    if not isinstance(done, Traced):
        raise InputError(f"the executor's future returned {type(done).__name__}, not what the function returned")
    return done


@contextlib.contextmanager
def _processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Spawned, since a fork of a process with threads (PyTorch has them) can hang."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_leave_ctrl_c_to_the_caller)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    pool.shutdown()


def _leave_ctrl_c_to_the_caller() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
