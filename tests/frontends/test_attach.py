"""What `attach` is given, in one process: read, refused in one line, or idle."""

import pytest
import torch
from torch import nn

import gradwire as gw
from gradwire.frontends.choices import StepChoices


def test_one_process_has_an_idle_handle_whatever_the_model():
    model = nn.Linear(3, 4)
    for each in (model, torch.compile(model, backend="eager")):
        handle = gw.attach(each, gw.TopK(0.1))
        assert handle.plan is None
        assert handle.stats().steps == 0
        assert "idle" in repr(handle)
        handle.load_state_dict(handle.state_dict(all_ranks=True))
        handle.detach()


def test_words_of_the_command_line_are_read():
    choices = StepChoices.of("topk:0.01+residual:0.9+allgather@25mb", controller=None)
    assert (choices.compressor, choices.memory) == (gw.TopK(0.01), gw.Residual(0.9))
    assert (choices.communicator, choices.groups) == (gw.AllGather(), gw.groups.of(megabytes=25))
    assert gw.attach(nn.Linear(3, 4), "powersgd:2").plan is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"compressor": "tpok:0.1"}, "there is no compressor 'tpok': did you mean topk"),
        ({"compressor": "topk:0.1+residual", "memory": gw.Residual()}, "memory= something else; keep one"),
        ({"compressor": gw.TopK}, r"is a class; pass an object, such as compressor=gw.TopK\(0.01\)"),
        ({"compressor": 0.01}, "is no Compressor"),
        ({"compressor": gw.TopK(0.1), "memory": gw.Residual}, "is a class; pass an object"),
        ({"compressor": gw.TopK(0.1), "communicator": "allgather"}, "is no Communicator"),
        ({"compressor": gw.TopK(0.1), "dense": 3}, "is no function"),
        ({"compressor": gw.TopK(0.1), "seed": "x"}, "is no int"),
        ({"compressor": gw.TopK(0.1), "scaler": 2.0}, "is no GradScaler"),
        ({"compressor": gw.TopK(0.1), "transport": "gloo"}, "is no Transport"),
        ({"candidates": gw.TopK(0.1)}, "is no list"),
        ({"compressor": gw.TopK(0.1), "communicator": gw.AllReduce()}, "cannot be added"),
    ],
)
def test_what_cannot_be_is_one_clear_line(arguments: dict, why: str):
    with pytest.raises(ValueError, match=why) as error:
        gw.attach(nn.Linear(3, 4), **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model", [3, nn.Linear, None])
def test_what_is_no_model_is_named(model: object):
    with pytest.raises(ValueError, match=r"DistributedDataParallel\(model\)"):
        gw.attach(model, gw.TopK(0.1))  # pyright: ignore
