"""How a runtime gives back what it has opened."""

from gradwire.runtime.ending import Ending
from gradwire.runtime.executor import Executor
from gradwire.runtime.monitor import Monitor
from gradwire.transports import Mesh


def end(ending: Ending, monitor: Monitor | None, executor: Executor, mesh: Mesh | None) -> None:
    """Ends its threads, and the mesh if nobody else uses it; the others hear that this rank takes no part any more."""
    ending.detach()
    if monitor:
        monitor.close()
    done = executor.close()
    if mesh and done:
        mesh.close()
    elif mesh:  # the process ends in the middle of a step: to close would wait for ranks that wait for this one
        mesh.abort("a rank ended in the middle of a step")
