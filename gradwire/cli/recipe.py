"""Options that say how a task is trained. Nothing here loads torch."""

from pathlib import Path
from typing import Annotated

import typer

_MODEL = "a function of your own, my.module:make or file.py:make, that returns model, batches and loss"
_PRESET = "a published training, such as gravac-resnet101, on the files in --data; CONFIGs and options replace its own"
_LR = "learning rate; adamw: 0.001; sgd: 0.01 (too much for signsgd and signum: try 0.001)"
_SCHEDULE = "constant, cosine, linear, or drop:30,60 (to a tenth after 30 and 60 of what the length is in)"
_WARM_UP = "steps, or with --epochs epochs, in which the rate rises; by default 20 steps"
_EVERY = "steps, or with --epochs epochs, between checkpoints"
_RESUME = "folder of an interrupted run with checkpoints, to go on with; alone"

OwnModel = Annotated[str | None, typer.Option("--model", help=_MODEL)]
Preset = Annotated[str | None, typer.Option(help=_PRESET)]
Steps = Annotated[int | None, typer.Option(help="to train each configuration for; by default 300")]
Epochs = Annotated[int | None, typer.Option(help="instead of steps; all that is held out is evaluated after each")]
Optimizer = Annotated[str | None, typer.Option(help="sgd or adamw; text: adamw, images: sgd")]
LearningRate = Annotated[float | None, typer.Option("--lr", help=_LR)]
Momentum = Annotated[float | None, typer.Option(help="of sgd; by default 0.9")]
WeightDecay = Annotated[float | None, typer.Option(help="by default the optimizer's")]
Schedule = Annotated[str | None, typer.Option(help=_SCHEDULE)]
WarmUp = Annotated[float | None, typer.Option(help=_WARM_UP)]
Clip = Annotated[float | None, typer.Option(help="the largest norm of the gradients")]
CheckpointEvery = Annotated[int | None, typer.Option(help=_EVERY)]
Resume = Annotated[Path | None, typer.Option(help=_RESUME)]
Pretrained = Annotated[Path | None, typer.Option(help="folder with config.json and model.safetensors to start from")]
