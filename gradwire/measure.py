"""The command line's measurements from Python. The lab and its dependencies are imported when a function is called."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from gradwire.lab.names import TIMED_STEPS, TURNS
from gradwire.options import called_as, check_type

if TYPE_CHECKING:
    from gradwire.compressors import Compressor
    from gradwire.lab.launch.lab_cluster import LabCluster
    from gradwire.lab.launch.rank_job import Spec
    from gradwire.lab.launch.runner import Job
    from gradwire.lab.play_spec import PlaySpec
    from gradwire.plans import Group, Plan
    from gradwire.report.timing import Timing
    from gradwire.schedule import Objective


@called_as('gw.bench(make, ["dense", gw.TopK(0.01)], hosts=2)')
def bench(
    make: Callable[[], Any],
    configurations: "Sequence[str | Compressor | Group]",
    *,
    hosts: int | None = None,
    link: str = "loopback",
    play: str | None = None,
    gpus_per_host: int = 1,
    inside: str | None = None,
    latency_us: float | None = None,
    different: bool = False,
    jitter: float = 0.0,
    slow_rank: float = 1.0,
    steps: int = TIMED_STEPS,
    repeats: int = TURNS,
    seed: int = 0,
    device: str = "cpu",
) -> "list[Timing]":
    """Times the steps of `make`'s model in these configurations, and in `nocomm`, which take turns.

    `make`, a function at the top of a file, returns model, batches and loss; see docs/tasks.md. A configuration is a
    compressor, a `Group` with its memory and communicator, or a text as on the command line. `hosts` ranks (2) are
    started, with a `link` each such as "1gbit"; or one rank is played of a cluster such as play="64@25gbit", to which
    belong `gpus_per_host`, `inside`, `latency_us`, `different`, `jitter` and `slow_rank`, as on the command line.

    Raises ValueError for what the command line refuses, and where this process is a rank itself.
    """
    from gradwire.construct import texts_of
    from gradwire.importing import named
    from gradwire.lab.experiments.bench_setup import Setup, TimingOptions
    from gradwire.lab.jobs.bench_job import OF_TURN, TimedSteps
    from gradwire.lab.jobs.bench_job import bench as job
    from gradwire.report.timing import summarize

    # the same steps as `gradwire bench`, on ranks that are started here
    inside_hosts = {"gpus_per_host": gpus_per_host, "inside": inside, "latency_us": latency_us}
    others = {"different": different, "jitter": jitter, "slow_rank": slow_rank}
    played, ranks = _where(hosts, link, play, **inside_hosts, **others)
    setup = Setup(model=named(make), ranks=ranks, link=link, play=played)
    spec = setup.spec(texts_of("configurations", configurations), TimingOptions(steps, repeats, seed, device))
    lines = _run(job, spec, setup.cluster(device))
    return summarize([TimedSteps.from_line(line) for line in lines if OF_TURN not in line])


@called_as("gw.plan(make, candidates=[gw.TopK(0.01)], hosts=2)")
def plan(
    make: Callable[[], Any],
    *,
    candidates: "Sequence[str | Compressor | Group]" = (),
    fidelity: float | None = None,
    objective: "Objective" = "progress",
    hosts: int | None = None,
    link: str = "loopback",
    play: str | None = None,
    gpus_per_host: int = 1,
    inside: str | None = None,
    latency_us: float | None = None,
    different: bool = False,
    jitter: float = 0.0,
    slow_rank: float = 1.0,
    seed: int = 0,
    device: str = "cpu",
) -> "Plan":
    """The plan with the most progress per second for `make`'s model on `hosts` ranks (2) with a `link` each, or on a
    cluster to `play`, or with the objective "step" that of the shortest steps, to give to `attach`; found by training.
    Where nothing clearly beats DDP by itself it is `gw.NATIVE`, with which `attach` leaves DDP alone.

    `make`, `play` and what belongs to it are as in `bench`, `candidates` as its configurations, by default those that
    need no tuning, and `fidelity` is what may be lost of dense training's progress, as in `Auto`. Raises ValueError for
    what the command line refuses, and where this process is a rank itself.
    """
    from gradwire.construct import texts_of
    from gradwire.importing import named
    from gradwire.lab.jobs.plan_job import Planned, PlanSpec, candidate
    from gradwire.lab.jobs.plan_job import plan as job
    from gradwire.lab.launch.lab_cluster import LabCluster
    from gradwire.lab.network.link import link_of
    from gradwire.lab.workloads import UserModel
    from gradwire.tuner.candidate_plans import check_rules, rules_by

    inside_hosts = {"gpus_per_host": gpus_per_host, "inside": inside, "latency_us": latency_us}
    others = {"different": different, "jitter": jitter, "slow_rank": slow_rank}
    played, ranks = _where(hosts, link, play, **inside_hosts, **others)
    # what cannot be is refused before ranks are started
    texts = texts_of("candidates", candidates)
    check_rules(rules_by([candidate(text) for text in texts], ()), fidelity, objective)
    own = UserModel(function=named(make))
    wanted = {"candidates": texts, "fidelity": fidelity, "objective": objective}
    spec = PlanSpec(task=own.name, options=[f"function={own.function}"], seed=seed, play=played, **wanted)
    cluster = LabCluster(1 if played else ranks, link_of(link), device)
    spec.check(ranks)
    return Planned.from_line(_run(job, spec, cluster)[-1]).plan


def _where(hosts: int | None, link: str, play: str | None, **options: Any) -> "tuple[PlaySpec | None, int]":
    """The cluster of which a rank is played, if one is given in place of hosts and a link, and the number of ranks."""
    from gradwire.lab.play_spec import PlaySpec

    check_type("hosts", hosts, (int,), "2")
    if play and (hosts is not None or link != "loopback"):
        raise ValueError(f"play={play!r} says ranks and link: leave hosts and link out")
    played = PlaySpec.of(play, **options)
    return played, played.cluster.ranks if played else 2 if hosts is None else hosts


def _run(job: "Job", spec: "Spec", cluster: "LabCluster") -> list[dict[str, Any]]:
    """The lines that rank 0 logged, of a job on ranks that are started for it."""
    from gradwire.lab.launch.runner import runner
    from gradwire.launched import is_launched

    # ranks of a launched job cannot start others
    if is_launched():
        raise ValueError("this starts ranks of its own: call it where none run, or use torchrun -m gradwire")
    lines: list[dict[str, Any]] = []
    with runner(cluster) as ranks, TemporaryDirectory() as folder:
        ranks.run(job, spec, Path(folder, "lines.jsonl"), lines.append)
    return lines
