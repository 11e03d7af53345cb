"""The commands of `gradwire`, whose modules are loaded when they are called."""

from importlib.metadata import version
from inspect import getdoc
from pathlib import Path
from typing import Annotated

import typer

import gradwire
from gradwire.cli import arguments as a
from gradwire.cli.loading import LoadsTorch
from gradwire.cli.option_groups import Compared, Pictures, Play, PricedTraining, ProfiledJob, RecipeChanges, with_groups
from gradwire.lab.names import TIMED_STEPS, TURNS

app = typer.Typer(
    help="Compressed data-parallel training, compared with dense on real tasks and slow links.",
    epilog="Begin with `gradwire bench dense powersgd:4 --link 100mbit`; `gradwire list` has all names.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"gradwire {gradwire.__version__}, torch {version('torch')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


@app.command("list")
def list_(name: a.Name = None) -> None:
    """List compressors by family, memories, communicators, controllers, tasks, models, presets."""
    from gradwire.cli import list_command

    list_command.show(name)


@app.command()
@with_groups
def train(
    *,
    compared: Compared,
    task: a.TrainTask = None,
    model: a.OwnModel = None,
    preset: a.Preset = None,
    suite: a.TrainSuite = None,
    hosts: a.Hosts = None,
    link: a.Rate = None,
    shard: a.Shard = 1,
    options: a.TaskOptions = None,
    folder: a.Folder = None,
    pretrained: a.Pretrained = None,
    recipe: RecipeChanges,
    checkpoint_every: a.CheckpointEvery = None,
    resume: a.Resume = None,
    seed: a.Seed = 0,
    device: a.Device = "cpu",
    out: a.Out = Path("runs"),
    pictures: Pictures,
) -> None:
    """Train configurations on one task, a published training or a suite; write metrics, pictures and a report to
    runs/."""
    from gradwire.cli import train_command
    from gradwire.cli.wanted import Wanted

    wanted = Wanted(compared, options, model, preset, pretrained, task, folder, recipe, seed, checkpoint_every)
    if resume:
        defaults = [(shard, 1), (device, "cpu"), (out, Path("runs"))]
        others = [hosts, link, suite, *(given for given, default in defaults if given != default)]
        return train_command.resume(resume, wanted, others)
    if suite:
        if shard > 1:
            raise typer.BadParameter("a suite trains with DDP: leave --shard out")
        return train_command.train_suite(suite, wanted, hosts, link, device, out)
    return train_command.train(wanted, hosts, link, shard, device, out)


@app.command()
@with_groups
def bench(
    *,
    compared: Compared,
    model: a.BenchModel = None,
    suite: a.BenchSuite = None,
    hosts: a.Hosts = None,
    link: a.Rate = None,
    shard: a.Shard = 1,
    play: Play,
    training: PricedTraining,
    layers: a.Layers = None,
    batch: a.Batch = None,
    size: a.Size = None,
    steps: a.StepsToTime = TIMED_STEPS,
    repeats: a.Repeats = TURNS,
    json_file: a.JsonFile = None,
    autocast: a.Autocast = None,
    seed: a.Seed = 0,
    device: a.Device = "cpu",
    out: Annotated[Path, typer.Option(help="where the folder of a suite, or of --play, goes")] = Path("runs"),
    pictures: Pictures,
) -> None:
    """Time the steps of configurations that take turns, always with `nocomm`: no communication at all. With --play, on
    a cluster of which this machine plays one rank."""
    from gradwire.cli import bench_command
    from gradwire.cli.console import mistakes
    from gradwire.lab.experiments.bench_setup import TimingOptions

    with mistakes():
        timed = TimingOptions(steps, repeats, seed, device, autocast)
        if not (suite or play.play) and (out != Path("runs") or pictures != Pictures()):
            raise ValueError("only --suite and --play write a folder: leave --out, --pdf and --svg out")
    sizes = {"layers": layers, "batch": batch, "size": size}
    if not play.play:
        bench_command.check_not_played(play, training)
    # a suite has configurations of its own
    if suite:
        own = {"CONFIGs": compared.configurations, "--controller": compared.controller, "--rule": compared.rules}
        own |= {"--plan": compared.plan, "--shard": shard != 1, "--json": json_file, "--play": play.play}
        cuts = {"model": model, "ranks": hosts, "link": link, **sizes}
        return bench_command.bench_suite(suite, cuts, timed, out, own)
    setup = {"model": model or "tiny-vgg16", "ranks": hosts, "link": link, "shard": shard, **sizes}
    if play.play:
        return bench_command.bench_played(setup, play, compared, timed, json_file, training, out)
    return bench_command.bench(setup, compared, timed, json_file)


@app.command()
@with_groups
def plan(
    *,
    trained: ProfiledJob,
    hosts: a.Hosts = None,
    link: a.Rate = None,
    candidates: a.Candidates = None,
    fidelity: a.Fidelity = None,
    objective: a.Objective = "progress",
    rules: a.PlanRules = None,
    seed: a.Seed = 0,
    device: a.Device = "cpu",
    play: Play,
    training: PricedTraining,
    out: a.Out = Path("runs"),
    pictures: Pictures,
) -> None:
    """Find the plan for a task on a network with the most progress per second, or with the shortest step; write it and
    its profile to runs/."""
    from gradwire.cli import scheduler_commands

    wanted = {"candidates": candidates, "fidelity": fidelity, "objective": objective, "rules": rules or []}
    scheduler_commands.find_plan(trained, hosts, link, wanted, seed, device, play, training, out)


@app.command()
@with_groups
def simulate(
    *,
    job: a.Job,
    ranks: a.RankCounts = None,
    link: a.Links = None,
    every: a.Every = 1,
    objective: a.ProfilesObjective = None,
    play: Play,
    training: PricedTraining,
    trained: ProfiledJob,
    seed: a.Seed = 0,
    device: a.Device = "cpu",
    out: a.Out = Path("runs"),
    pictures: Pictures,
) -> None:
    """Predict a job's step time on clusters that you do not have, from its profile. With --play, on one cluster, of
    which this machine then plays one rank: predicted steps beside played ones."""
    from gradwire.cli import check_command, scheduler_commands
    from gradwire.cli.console import mistakes

    with mistakes():
        if play.play and pictures != Pictures():
            raise ValueError("--play draws nothing: leave --pdf and --svg out")
        if play.play and (ranks or link or every > 1):
            raise ValueError("--play says ranks and link, and plays every step: leave --ranks, --link and --every out")
        if not play.play and any((*vars(trained).values(), seed, device != "cpu")):
            raise ValueError(
                "a profile says all of a job; --task, --model, --set, --data, --seed and --device are for --play"
            )
    if play.play:
        return check_command.check(job, play, objective, trained, seed, device, training, out)
    clusters = ranks or "8,64,512", link or "1gbit,10gbit,25gbit,100gbit"
    return scheduler_commands.predict(job, *clusters, play, every, objective, training, out)


@app.command()
def download(name: a.ImageSet, folder: a.Into) -> None:
    """Download MNIST, Fashion-MNIST or CIFAR, by torchvision, for tasks that read them by --data."""
    from gradwire.cli.console import mistakes
    from gradwire.lab.workloads import download as sets

    with mistakes():
        print(f"--data {sets.download(name, folder.expanduser())}")


@app.command()
def soak(
    minutes: a.Minutes = 20.0,
    faults: a.Faults = "kill,stop,slow,corrupt,overflow,resize",
    hosts: a.SoakHosts = 4,
    link: a.Rate = None,
    seed: a.FaultSeed = 0,
    out: a.Out = Path("runs"),
) -> None:
    """Train under random faults; write recoveries, and laws that did not hold, to runs/."""
    from gradwire.cli import soak_command

    soak_command.soak(minutes, faults, hosts, link, seed, out)


@app.command()
def doctor(
    ranks: a.DoctorRanks = None,
    hosts: a.DoctorHosts = None,
    link: a.Rate = None,
    device: a.DoctorDevice = None,
) -> None:
    """Check this cluster, under torchrun or Slurm, or ranks started here; print faults, each with a remedy."""
    from gradwire.cli import doctor_command

    doctor_command.doctor(ranks, hosts, link, device)


@app.command()
def demo() -> None:
    """Train a small language model on 4 hosts joined at 100 Mbit/s, dense and compressed."""
    from gradwire.cli import train_command

    train_command.demo()


for _command in app.registered_commands:
    _command.cls = LoadsTorch
    # whole in the list of commands, where they would else be cut
    _command.short_help = " ".join((getdoc(_command.callback) or "").split())
