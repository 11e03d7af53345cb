"""The end of a runtime: its threads and connections."""

from gradwire.runtime.ending import Ending
from gradwire.runtime.executor import Executor
from gradwire.runtime.monitor import Monitor
from gradwire.transports import Mesh


def end(ending: Ending, monitor: Monitor | None, executor: Executor, mesh: Mesh | None) -> None:
    """Ends the threads, and the mesh if the job owns it; the other ranks hear that this one takes no part any more."""
    ending.detach()
    if monitor:
        monitor.close()
    done = executor.close()
    if mesh and done:
        mesh.close()
    elif mesh:  # the process ends in the middle of a step: to close would wait for ranks that wait for this one
        mesh.abort("a rank ended in the middle of a step")
