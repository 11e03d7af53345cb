"""The end of a job: after an error, or where it is closed without one."""

from gradwire.runtime.failures.failure_verdict import FailureVerdict
from gradwire.runtime.failures.job_errors import clear_frames
from gradwire.runtime.failures.monitor import Monitor
from gradwire.runtime.steps.step_results import StepResults
from gradwire.runtime.steps.steps import Steps
from gradwire.runtime.worker.executor import Executor
from gradwire.torch_private.process_groups import nccl_groups
from gradwire.transports import Mesh
from gradwire.transports.bounded_calls import run_bounded
from gradwire.transports.mesh import ABORT_S

END_S = 2.0
"""How long to wait for the last step's verdict, on a GPU whose collectives were aborted."""


def end_job(error: BaseException, steps: Steps, results: StepResults, failure: FailureVerdict) -> None:
    """Ends the job: this rank's calls raise the error, and so do the other ranks'. On any thread."""
    # this rank: the worker starts nothing more, nothing holds the connections, what comes does not count
    steps.machine.fail()
    steps.pipeline.drain()
    steps.executor.abort()
    clear_frames(error)
    try:
        # all ranks: their collectives end, and so does, mostly, the worker's wait; they agree on who is to blame
        failure.end(error)
        # torch's own collectives, such as DDP's broadcast of buffers, may wait for a lost rank as well, and nothing
        # queued behind them on the GPU would run. Under torchft, where replicas vote, they join this replica's ranks,
        # which go on
        if steps.elastic and not steps.voted:
            run_bounded([group.abort for group in nccl_groups()], ABORT_S)
        # no step counts any more
        run_bounded([steps.stop], END_S)
    finally:  # also where Ctrl-C ends the above
        # this rank's threads that wait for a whole step get it, all others the error
        results.fail(error)
        steps.executor.fail_waiters(error)


def close_all(
    failure: FailureVerdict, monitor: Monitor | None, executor: Executor, mesh: Mesh, own_mesh: Mesh | None
) -> None:
    """Closes a runtime: leaves this rank's mark for the others, ends its threads, and closes `own_mesh`, which is None
    where the user gave the job's `mesh`; that one may then carry another job."""
    # the mark first: other ranks may be waiting for this one
    failure.detach()
    # then this rank's threads, the monitor's last: ranks may be lost in the last step
    try:
        done = executor.close(monitor.watches if monitor else None)
    finally:
        if monitor:
            monitor.close()
    if done:
        mesh.release()
    if own_mesh and done:
        own_mesh.close()
    elif own_mesh:
        # the process ends in the middle of a step; closing would wait for ranks that wait for this one
        own_mesh.abort("a rank ended in the middle of a step")
