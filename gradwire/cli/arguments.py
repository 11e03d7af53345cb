"""Arguments of the commands, one type for each. Nothing here loads torch, so that `--help` is fast."""

from pathlib import Path
from typing import Annotated

import typer

from gradwire.cli import early as e
from gradwire.cli.completion import candidates, configurations, families, one_of
from gradwire.cli.early import early, named
from gradwire.importing import module_and_name
from gradwire.lab.names import MODELS, PRESETS, SUITES, TASKS, check_device, exported_names
from gradwire.lab.network.link import NVLINK, PCIE_3, link_of

_CONFIGURATION = (
    "dense, or [localsteps[:value,...]+]compressor[:value,...][+memory][+communicator], such as topk:0.01+residual; "
    "or @planned behind it, for the shortest step; or auto; or a hook of torch's, such as torch-powersgd:4; see `list`"
)
_CONTROLLER = "changes the plan of each CONFIG that compresses, while it trains; see `list controllers`"
_RULE = (
    "how parameters that match a pattern are sent, in each CONFIG that compresses; the first match counts: "
    "*.norm.*=fp32, dim<2=bf16, *.weight&numel>99999=topk:0.01; auto, or bf16|qsgd, lets the automatic plan choose"
)
_PLAN_RULE = "candidates for parameters that match a pattern, the first match counts: *.norm.*=fp32 or dim>1=bf16|qsgd"
_BENCH_MODEL = "by default tiny-vgg16; see `list models`; or my.module:make, a function of your own"
_BENCH_SUITE = "instead of CONFIGs, what a published system ran: cupcake, acpsgd, adtopk or gravac; --model picks rows"
_TRAIN_MODEL = "a function of your own, my.module:make or file.py:make, that returns model, batches and loss"
_PRETRAINED = "folder with config.json and model.safetensors to start from; with --suite, of such folders by task"
_TRAIN_SUITE = "instead of CONFIGs, what such a system trained; on the sets below --data, or gravac's in small"
_TASK = "what to train on, by default lm; see `list tasks`"
_TRAIN_TASK = f"{_TASK}. Of a suite, the task to keep"
_PRESET = "a published training on the files in --data, see `list presets`; CONFIGs and options replace its own"
_LR = "learning rate; by default 0.001 with adamw, 0.01 with sgd (too much for signsgd and signum: try 0.001)"
_SCHEDULE = "constant, cosine, linear, or drop:30,60 (to a tenth after 30 and 60 of what the length is in)"
_WARM_UP = "steps, or with --epochs epochs, in which the rate rises; by default 20 steps"
_JOB = "profile.json, or a plan.json beside one, as `plan` writes them; or resnet50, resnet101, bert-base or bert-large"
_OBJECTIVE = "step: the shortest step of the candidates alone; progress: the most progress per second"
_INSIDE = f"link between the ranks of a host; by default {NVLINK}, as NVLink; for `simulate` without --play {PCIE_3}"
_LATENCY = (
    "microseconds that each message between hosts takes on top of its bytes; by default 50; for `simulate` without "
    "--play those of the profile"
)
_CANDIDATES = "separated by commas, such as bf16,topk:0.01; by default those that need no tuning"

Configurations = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG...", help=_CONFIGURATION, autocompletion=configurations, callback=early(e.configurations)
    ),
]
ControllerName = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="NAME[:VALUE,...]",
        help=_CONTROLLER,
        autocompletion=one_of(*exported_names("controllers")),
        callback=early(e.controller),
    ),
]
RuleTexts = Annotated[list[str] | None, typer.Option("--rule", metavar="PATTERN=COMPRESSOR", help=_RULE)]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="one more to compare: a plan.json of `gradwire plan`")]
Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="one of them in depth, or a kind, such as tasks", autocompletion=families),
]

Hosts = Annotated[int | None, typer.Option(help="ranks to start, each with a link of its own; by default 2")]
Rate = Annotated[
    str | None,
    typer.Option("--link", help="emulated link, such as 100mbit; else loopback", callback=early(link_of)),
]
Shard = Annotated[
    int,
    typer.Option(min=1, help="ranks to a host, which share its link and hold one model together by FSDP2; else DDP"),
]
Device = Annotated[str, typer.Option(help="cpu, or cuda; ranks may share a GPU", callback=early(check_device))]
Seed = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="seed of the model, of the order of the data and of compressors")
]
Pdf = Annotated[bool, typer.Option("--pdf", help="also write each picture as PDF", callback=e.beside("pdf"))]
Svg = Annotated[bool, typer.Option("--svg", help="also write each picture as SVG", callback=e.beside("svg"))]
Out = Annotated[Path, typer.Option(help="where the run's folder goes")]

Task = Annotated[str | None, typer.Option(help=_TASK, autocompletion=one_of(*TASKS), callback=named("task", TASKS))]
TrainTask = Annotated[
    str | None, typer.Option(help=_TRAIN_TASK, autocompletion=one_of(*TASKS), callback=named("task", TASKS))
]
TaskOptions = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="option of the task; see `list tasks`")
]
Folder = Annotated[
    Path | None, typer.Option("--folder", "--data", help="where the task's files are; a suite's: its tasks' folders")
]
OwnModel = Annotated[str | None, typer.Option("--model", help=_TRAIN_MODEL, callback=early(module_and_name))]
Preset = Annotated[
    str | None, typer.Option(help=_PRESET, autocompletion=one_of(*PRESETS), callback=named("preset", PRESETS))
]
TrainSuite = Annotated[str | None, typer.Option(help=_TRAIN_SUITE, callback=named("suite", SUITES))]
Pretrained = Annotated[Path | None, typer.Option(help=_PRETRAINED)]

Steps = Annotated[int | None, typer.Option(help="to train each configuration for; by default 300")]
Epochs = Annotated[int | None, typer.Option(help="instead of steps; all that is held out is evaluated after each")]
Optimizer = Annotated[str | None, typer.Option(help="sgd or adamw; text: adamw, images: sgd")]
LearningRate = Annotated[float | None, typer.Option("--lr", help=_LR)]
Momentum = Annotated[float | None, typer.Option(help="of sgd; by default 0.9")]
WeightDecay = Annotated[float | None, typer.Option(help="of the optimizer; by default its own in torch")]
Schedule = Annotated[str | None, typer.Option(help=_SCHEDULE)]
WarmUp = Annotated[float | None, typer.Option(help=_WARM_UP)]
Clip = Annotated[float | None, typer.Option(help="scale gradients down to this norm where theirs is larger")]
Autocast = Annotated[
    str | None, typer.Option(help="bf16 or fp16: forward passes in half precision, fp16 with a scaled loss")
]
CheckpointEvery = Annotated[int | None, typer.Option(help="steps, or with --epochs epochs, between checkpoints")]
Resume = Annotated[
    Path | None,
    typer.Option(help="folder of an interrupted run with checkpoints; give no other option"),
]

BenchModel = Annotated[
    str | None, typer.Option("--model", help=_BENCH_MODEL, autocompletion=one_of(*MODELS), callback=early(e.model))
]
BenchSuite = Annotated[str | None, typer.Option(help=_BENCH_SUITE, callback=named("suite", SUITES))]
Layers = Annotated[int | None, typer.Option(help="how many of the model's layers to keep; by default all")]
Batch = Annotated[int | None, typer.Option(help="samples of a rank in a step; by default as published")]
Size = Annotated[int | None, typer.Option(help="pixels along an image's side, or tokens in a window")]
StepsToTime = Annotated[int, typer.Option(help="steps to time in each repeat")]
Repeats = Annotated[int, typer.Option(help="turns that each configuration gets")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="write all figures to this file")]

Play = Annotated[
    str | None, typer.Option(help="play one rank of a cluster, such as 64@25gbit, in place of ranks on a link")
]
Different = Annotated[
    bool,
    typer.Option("--different", help="with --play: other ranks send payloads of other batches, not this rank's own"),
]
Jitter = Annotated[
    float,
    typer.Option(help="with --play: standard deviation of a rank's computing time, as a share of it: 0.05 is 5 %"),
]
SlowRank = Annotated[
    float, typer.Option("--slow-rank", help="with --play: how many times as long one rank computes, such as 1.2")
]

TrainingSteps = Annotated[
    int | None, typer.Option(help="also show how many hours so many steps take on the played or simulated cluster")
]
Price = Annotated[
    float | None, typer.Option(help="the price of an hour of one GPU: with --training-steps, show the cost, not hours")
]

Candidates = Annotated[str | None, typer.Option(help=_CANDIDATES, autocompletion=candidates)]
Fidelity = Annotated[float | None, typer.Option(help="what may be lost of dense training's progress, such as 0.01")]
Objective = Annotated[str, typer.Option(help=_OBJECTIVE)]
ProfilesObjective = Annotated[str | None, typer.Option("--objective", help=f"{_OBJECTIVE}; else as the profile says")]
PlanRules = Annotated[list[str] | None, typer.Option("--rule", metavar="PATTERN=CANDIDATES", help=_PLAN_RULE)]
Job = Annotated[str, typer.Argument(metavar="JOB", help=_JOB)]
RankCounts = Annotated[str | None, typer.Option(help="numbers of ranks; by default 8,64,512")]
Links = Annotated[
    str | None,
    typer.Option(help="links between hosts; by default 1gbit,10gbit,25gbit,100gbit", callback=early(e.links)),
]
GpusPerHost = Annotated[int, typer.Option(help="ranks that share a host and its link")]
Inside = Annotated[str | None, typer.Option(help=_INSIDE, callback=early(e.links))]
Every = Annotated[
    int,
    typer.Option(min=1, help="30: also predict local steps, which send once in 30 steps"),
]
Latency = Annotated[float | None, typer.Option(help=_LATENCY)]

ImageSet = Annotated[str, typer.Argument(metavar="SET", help="mnist, fashion-mnist, cifar10 or cifar100")]
Into = Annotated[Path, typer.Argument(metavar="FOLDER", help="where its files go")]

Minutes = Annotated[float, typer.Option(help="for how long faults strike the ranks")]
Faults = Annotated[str, typer.Option(help="kinds of faults, separated by commas")]
SoakHosts = Annotated[int, typer.Option(min=2, max=254, help="ranks, each on a host of its own where there is a link")]
FaultSeed = Annotated[int, typer.Option("--seed", min=0, help="seed of the faults: the same seed draws the same ones")]

DoctorRanks = Annotated[
    int | None, typer.Option("--ranks", min=1, max=1024, help="to start here; by default 2, or one for each GPU")
]
DoctorHosts = Annotated[
    int | None, typer.Option("--hosts", help="emulated hosts that share them, with --link; by default one for each")
]
DoctorDevice = Annotated[
    str | None,
    typer.Option("--device", help="cpu or cuda; by default cuda where there is a GPU", callback=early(check_device)),
]
