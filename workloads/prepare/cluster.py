"""Where the tasks of a step run: in this process, or on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from workloads.errors import DataError
from workloads.prepare.progress import Advance, Meter, unheard

if TYPE_CHECKING:
    from distributed import Client

CONNECT_S = 10
Task = TypeVar("Task")
Result = TypeVar("Result")


def run_here(
    function: Callable[[Task, Advance], Result], tasks: Sequence[Task], meter: Meter, *, at_once: int
) -> list[Result]:
    """Run the tasks of a step in this process; results come in the order of the tasks, the first error ends the step.

    Args:
        function: Does one task and says how far it is; it skips what an earlier run has finished.
        tasks: Tasks that do not depend on each other.
        meter: Told how far each task is.
        at_once: Tasks that run at the same time; 1 for those that use all cores themselves.
    """
    if at_once == 1:  # not in a pool: a Ctrl-C must not wait for the task
        return [function(task, meter.advance(position)) for position, task in enumerate(tasks)]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(function, tasks, map(meter.advance, range(len(tasks)))))


class OnCluster:
    """A Dask cluster. Its workers see the same files under the same names, and have one thread each."""

    def __init__(self, address: str) -> None:
        """Connect.

        Raises:
            DataError: Dask is not installed, or nothing answers at the address.
        """
        try:
            from distributed import Client
        except ImportError as error:
            raise DataError("--scheduler needs Dask: pip install dask distributed, here and on the workers") from error
        try:
            self._client: Client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise DataError(
                f"no Dask scheduler answers at {address} ({error}): start one, or leave out --scheduler"
            ) from error
        if not self._client.scheduler_info()["workers"]:
            self.close()
            raise DataError(f"the Dask scheduler at {address} has no workers: start some with dask worker {address}")

    def run(self, function: Callable[[Task, Advance], Result], tasks: Sequence[Task], meter: Meter) -> list[Result]:
        """Run the tasks of a step on the workers; as `run_here`, but the meter is told of whole tasks only."""
        from distributed import KilledWorker

        futures = self._client.map(function, tasks, [unheard] * len(tasks), pure=False)
        results = []
        try:
            for position, future in enumerate(futures):  # in order, so that the first bad file is the one reported
                results.append(future.result())
                meter.finish(position)
        except KilledWorker as error:
            raise DataError(
                f"workers died at their task ({error}): give them more memory than --memory says, and run again"
            ) from error
        except BaseException:
            self._client.cancel(futures)
            raise
        return results

    def close(self) -> None:
        """Leave the cluster as it is."""
        self._client.close()
