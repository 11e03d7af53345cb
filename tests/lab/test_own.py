"""A user's own model: on the command line, from Python, and every mistake in one line."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

import gradwire as gw
from gradwire.cli import main
from gradwire.construct import text_of
from gradwire.importing import imported, named
from gradwire.lab.catalogue import catalogue
from gradwire.lab.configuration import parse
from gradwire.lab.doctor import training_step
from gradwire.lab.launch.rank_job import Log, Peers, Spec
from gradwire.lab.launch.runner import _Joined
from gradwire.lab.workloads import Digits, Task, UserModel
from gradwire.lab.workloads.make_task import make_task
from tests.support.cases import CASES
from tests.support.warm import program

pytestmark = pytest.mark.usefixtures("forked_ranks")

DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"


def make():
    data = torch.utils.data.TensorDataset(torch.arange(24.0).view(12, 2))

    def batches(rank: int, world: int):
        return torch.utils.data.DataLoader(data, 2, sampler=torch.utils.data.DistributedSampler(data, world, rank))

    return torch.nn.Linear(2, 1), batches, lambda model, batch: model(*batch).square().mean()


def documented(tmp_path: Path) -> Path:
    """The example of docs/tasks.md, in a file."""
    code = re.search(r"```python\n(# mine\.py\n.*?)```", DOCS.read_text(), re.DOTALL)
    assert code
    assert sum(map(bool, code[1].splitlines())) <= 16
    (tmp_path / "mine.py").write_text(code[1])
    return tmp_path / "mine.py"


def test_the_documented_model_trains_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = f"{documented(tmp_path)}:make"
    options = ["--steps", "40", "--lr", "0.05", "--out", str(tmp_path / "runs")]
    assert main(["train", "topk:0.1", "--model", model, *options]) == 0
    assert {"training", "loss"} <= set(capsys.readouterr().out.split())
    (run,) = (tmp_path / "runs").iterdir()
    assert {"curves.png", "report.html"} <= {path.name for path in run.iterdir()}
    losses = [float(loss) for loss in re.findall(r'"loss": ([\d.]+)', (run / "topk-0.1" / "metrics.jsonl").read_text())]
    assert sum(losses[-5:]) < sum(losses[:5])


SCRIPT = """
import torch
import gradwire as gw

def make():
    def batches(rank, world):
        while True:
            yield {"inputs": torch.ones(4, 8) * rank}
    return torch.nn.Linear(8, 8), batches, lambda model, batch: model(batch["inputs"]).square().mean()

if __name__ == "__main__":
    timings = gw.bench(make, [gw.TopK(0.1), "bf16"], steps=2, repeats=1)
    print(*(f"{timing.configuration} {timing.totals.wire_bytes > 0}" for timing in timings), sep="; ")
"""


@pytest.mark.long
def test_a_function_of_the_script_itself_is_timed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with program(str(tmp_path / "script.py"), stdout=subprocess.PIPE, text=True) as timing:
        out, _ = timing.communicate(timeout=200)
    assert timing.returncode == 0
    assert out == "nocomm False; topk:ratio=0.1 True; bf16 True\n"


def test_gradwire_is_imported_without_the_lab() -> None:
    code = "import gradwire as gw, sys; assert 'gradwire.lab' not in sys.modules; assert callable(gw.plan)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_plan_is_found_from_python() -> None:
    plan = gw.plan(make, candidates=[gw.BF16()])
    assert isinstance(plan, gw.Plan)
    assert plan.native or sorted(name for group in plan.groups for name in group.slots) == ["bias", "weight"]


def test_the_command_line_lists_it_and_finds_a_module_beside_itself(tmp_path: Path, monkeypatch) -> None:
    assert "own" in {entry.name for entry in catalogue()["Tasks"]}
    (tmp_path / "lone_module.py").write_text("def make(): pass")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert imported("lone_module:make").__name__ == "make"


def test_a_function_is_found_by_its_name() -> None:
    assert imported(named(make)) is make
    for other in (lambda: None, torch.nn.Linear(1, 1).forward):
        with pytest.raises(ValueError, match="cannot be imported by the ranks: define it at the top of a file"):
            named(other)


@pytest.mark.parametrize("compressor", [case.compressor for case in CASES], ids=str)
def test_every_compressor_has_a_text(compressor) -> None:
    assert parse(text_of(compressor)).compressor == compressor


def test_epochs_are_the_loaders_and_differ() -> None:
    task = UserModel(function=named(make))
    assert task.epoch_steps(2) == 3
    first, second = (torch.cat([batch[0] for batch in islice(task.batches(0, 2, 0, start), 3)]) for start in (0, 3))
    assert not torch.equal(first, second)
    both = torch.cat([batch[0] for rank in range(2) for batch in islice(task.batches(rank, 2, 0), 3)])
    assert both[both[:, 0].argsort()].flatten().tolist() == list(range(24))


def noisy():
    model, _, loss = make()
    return model, lambda rank, world: ([torch.rand(2, 2)] for _ in range(3)), loss, lambda: [[torch.rand(2, 2)]]


def test_what_is_read_before_a_training_goes_on_leaves_its_generator_alone() -> None:
    task, before = UserModel(function=named(noisy)), torch.get_rng_state()
    task.batches(0, 1, 0, 5)
    task.held_out_batch(torch.tensor([0]))
    assert torch.equal(torch.get_rng_state(), before)


def at_once(rank: int, world: int):
    return list(torch.randperm(64)[rank::world].split(8))


def lazily(rank: int, world: int):
    while True:
        yield from at_once(rank, world)


def parts(batches):
    model, _, loss = make()
    return model, batches, loss


def drawn_at_once():
    return parts(at_once)


def drawn_lazily():
    return parts(lazily)


@pytest.mark.parametrize("function", [drawn_at_once, drawn_lazily])
def test_ranks_agree_on_an_order_however_it_is_drawn(function) -> None:
    task, ranks = UserModel(function=named(function)), list[torch.Tensor]()
    for rank in range(2):
        torch.manual_seed(rank)  # that of the training differs
        ranks.append(torch.cat(list(islice(task.batches(rank, 2, 0), 8))))
        assert torch.equal(ranks[-1][32:], torch.cat(list(islice(task.batches(rank, 2, 0, 4), 4))))
    for epoch in range(2):
        both = torch.cat([samples[32 * epoch :][:32] for samples in ranks])
        assert both.sort().values.tolist() == list(range(64))


class Noise(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.rand(1)


def noisy_in(workers: int):
    def batches(rank: int, world: int):
        sampler = torch.utils.data.DistributedSampler(Noise(), world, rank)
        return torch.utils.data.DataLoader(Noise(), 2, sampler=sampler, num_workers=workers)

    return parts(batches)


def noisy_here():
    return noisy_in(0)


def noisy_in_workers():
    return noisy_in(1)


@pytest.mark.parametrize("function", [noisy_here, noisy_in_workers])
def test_each_rank_has_noise_of_its_own_where_the_sampler_orders(function) -> None:
    task = UserModel(function=named(function))
    first, again, other = (torch.cat(list(islice(task.batches(rank, 2, 0), 4))) for rank in (0, 0, 1))
    assert torch.equal(first, again)
    assert len({*first.flatten().tolist(), *other.flatten().tolist()}) == 16


def test_a_seed_s_second_epoch_is_not_the_next_seed_s_first() -> None:
    task = UserModel(function=named(shuffled))
    second, first = list(islice(task.batches(0, 1, 0), 2))[1:], list(islice(task.batches(0, 1, 1), 1))
    assert not torch.equal(second[0], first[0])


def shuffled():
    return parts(lambda rank, world: torch.utils.data.DataLoader(torch.arange(64), 64, shuffle=True))


class Unused(torch.nn.Module):
    def forward(self, inputs, *targets):
        raise RuntimeError(inputs)


@pytest.mark.parametrize("build", [lambda: UserModel(function=named(make)), Digits], ids=["own", "digits"])
def test_a_parameter_without_a_gradient_is_answered_in_one_line(build: Callable[[], Task]) -> None:
    """DDP advises an option that the lab does not have."""
    task = build()
    words = "Expected to have finished reduction\nfind_unused_parameters=True"
    with pytest.raises(ValueError, match=r"a parameter of the model had no gradient in the last step; freeze those"):
        task.training_loss(Unused(), (words, None))
    with pytest.raises(RuntimeError, match="another mistake"):
        task.training_loss(Unused(), ("another mistake", None))


def test_the_generator_of_gpus_is_left_to_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded = list[int]()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    task = UserModel(function=named(noisy))
    task.build_model(3)
    list(islice(task.batches(0, 1, 0, 2), 4))
    task.held_out_batch(torch.tensor([0]))
    training_step._model()
    assert not seeded


GPU = torch.Generator().manual_seed(7)
"""In place of a GPU's."""


def drawn_on_a_gpu():
    model, batches, loss = make()
    torch.nn.init.uniform_(model.weight, generator=GPU)
    return model, batches, loss


def test_a_model_that_is_made_on_a_gpu_follows_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "get_rng_state": lambda device: GPU.get_state(),
        "set_rng_state": lambda state, device: GPU.set_state(state),
        "manual_seed": GPU.manual_seed,
    }
    for name, call in calls.items():
        monkeypatch.setattr(torch.cuda, name, call)
    before = GPU.get_state()
    task = UserModel(function=named(drawn_on_a_gpu))
    first, again, other = (task.build_model(seed).weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(GPU.get_state(), before)


def with_a_generator():
    generator = torch.Generator()
    return parts(lambda rank, world: torch.utils.data.DataLoader(torch.arange(64), shuffle=True, generator=generator))


def test_jobs_of_one_process_draw_as_in_processes_of_their_own(tmp_path: Path) -> None:
    drawn = list[torch.Tensor]()

    def job(spec: Spec, peers: Peers, log: Log) -> None:
        batches = make_task(spec.task, spec.options).batches(peers.rank, peers.world, 0)
        drawn.append(torch.cat(list(islice(batches, 64))))

    runner = _Joined(Peers(0, 1, torch.device("cpu"), gw.SizeRecorder(world=1)))
    for _ in range(2):
        runner.run(job, Spec(task="own", options=[f"function={named(with_a_generator)}"]), tmp_path / "lines", print)
    assert torch.equal(*drawn)


def generated():
    model, _, loss = make()
    return model, lambda rank, world: ((torch.full((2, 2), float(n)),) for n in range(3)), loss


def test_a_generator_of_batches_is_made_anew_when_it_ends() -> None:
    batches = islice(UserModel(function=named(generated)).batches(0, 2, 0), 7)
    assert [int(batch[0][0, 0]) for batch in batches] == [0, 1, 2, 0, 1, 2, 0]


def test_models_differ_by_seed_alone() -> None:
    task = UserModel(function=named(make))
    first, again, other = (task.build_model(seed).weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = torch.nn.Embedding(20_000, 32, sparse=True), torch.nn.Linear(32, 64)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(words))


def words():
    def batches(rank: int, world: int):
        return [torch.arange(40) // 2 + 30 * rank]

    return Words(), batches, lambda model, batch: model(batch).square().mean()


@pytest.mark.long
def test_of_a_sparse_gradient_dense_sends_rows_too(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    options = ["--model", f"{__file__}:words", "--steps", "2", "--repeats", "1", "--json", str(file)]
    assert main(["bench", "dense", "fp32", "localsteps:2", *options]) == 0
    _, dense, fp32, local = (each["per_step"] for each in json.loads(file.read_text())["timings"])
    of_layer, of_rows = 4 * (32 * 64 + 64), 20 * (8 + 4 * 32)  # among two ranks; each index once
    assert (
        dense["wire_bytes"] == dense["dense_bytes"] == fp32["dense_bytes"] == local["dense_bytes"] == of_layer + of_rows
    )
    assert fp32["wire_bytes"] == pytest.approx(dense["wire_bytes"], rel=0.02)


def test_ranks_that_run_already_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="starts ranks of its own"):
        gw.bench(make, ["bf16"])


MISTAKES = {
    "missing": ("nowhere.at.all:make", "nowhere.at.all cannot be imported: No module named 'nowhere'"),
    "file": ("/nowhere/mine.py:make", "no file /nowhere/mine.py"),
    "name": ("mine.py:build", "mine.py has no function or class 'build'"),
    "text": ("mine.py:NUMBER", "mine.py:NUMBER is a int, not a function"),
    "no module": (":make", "':make' names no function: write module:name or file.py:name"),
    "two": (
        "mine.py:two",
        "mine.py:two returns a tuple of 2, not a tuple of three or four: return model, batches, loss",
    ),
    "nothing": ("mine.py:nothing", "mine.py:nothing returns a NoneType, not a tuple"),
    "no model": ("mine.py:no_model", "mine.py:no_model returns a function as model, not a torch.nn.Module"),
    "empty": ("mine.py:empty", "mine.py:empty returns a model without parameters to train"),
    "loader": ("mine.py:loader", "mine.py:loader returns a list as batches, not a function"),
    "arguments": ("mine.py:one_rank", "mine.py:one_rank: batches is called with (rank, world), but takes (rank)"),
    "loss": ("mine.py:batch_alone", "mine.py:batch_alone: loss is called with (model, batch), but takes (batch)"),
    "held out": ("mine.py:held", "mine.py:held: held_out is called with (), but takes (rank)"),
    "config": ("mine.py:of_config", "mine.py:of_config is called with (), but takes (config)"),
    "no batch": ("mine.py:no_batch", "mine.py:no_batch: batches(0, 2) gives no batch"),
    "number": ("mine.py:number", "mine.py:number: batches(rank, world) gives a int, not batches to go through"),
    "import": ("bad.py:make", "bad.py cannot be imported: No module named 'nowhere'"),
    "one model": ("mine.py:one", "mine.py:one returns the parameters that it has returned before"),
    "one body": ("mine.py:one_body", "mine.py:one_body returns the parameters that it has returned before"),
    "package": ("mine.py:package", "mine.py:package cannot import what it needs: No module named 'nowhere'"),
    "syntax": ("syntax.py:make", "syntax.py cannot be imported: invalid syntax (syntax.py, line 2)"),
    "raises at once": ("at_once.py:make", "NameError: name 'nn' is not defined (at_once.py, line 2)"),
    "dot": ("./mine:one", "'./mine:one' names no function: write module:name or file.py:name"),
    "raises": ("mine.py:raises", "mine.py:raises fails with KeyError: 'weights' (mine.py, line 1)"),
    "batches raise": ("mine.py:no_data", "mine.py:no_data fails with FileNotFoundError: [Errno 2] No such file"),
    "package of batches": ("mine.py:lazy", "mine.py:lazy cannot import what it needs: No module named 'nowhere'"),
}
MINE = """def raises(): {}["weights"]
def no_data(): return torch.nn.Linear(1, 1), lambda rank, world: open("/nowhere"), loss
import torch
NUMBER = 3
def loss(model, batch): return model(batch).mean()
def two(): return torch.nn.Linear(1, 1), loss
def nothing(): pass
def one_rank(): return torch.nn.Linear(1, 1), (lambda rank: []), loss
def batch_alone(): return torch.nn.Linear(1, 1), (lambda rank, world: []), (lambda batch: None)
def held(): return torch.nn.Linear(1, 1), (lambda rank, world: []), loss, (lambda rank: [])
def of_config(config): return one_rank()
def no_model(): return loss, loss, loss
def empty(): return torch.nn.ReLU(), lambda rank, world: [], loss
def loader(): return torch.nn.Linear(1, 1), [], loss
def no_batch(): return torch.nn.Linear(1, 1), lambda rank, world: [], loss
def number(): return torch.nn.Linear(1, 1), lambda rank, world: 3, loss
ONE = torch.nn.Linear(1, 1)
def one(): return ONE, lambda rank, world: [torch.ones(1)], loss
def one_body(): return torch.nn.Sequential(torch.nn.Linear(1, 1), ONE), lambda rank, world: [torch.ones(1)], loss
def package(): import nowhere
def lazy():
    def batches(rank, world):
        import nowhere
        yield
    return torch.nn.Linear(1, 1), batches, loss
"""


def nothing_held_out():
    return *make(), lambda: []


def test_held_out_batches_that_are_none_are_named_before_ranks_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dense", "--model", f"{__file__}:nothing_held_out"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "nothing_held_out: held_out() gives no batch: give one or more, or leave held_out out" in err


@pytest.mark.parametrize(
    "command", ["train", *(pytest.param(name, marks=pytest.mark.long) for name in ("bench", "plan"))]
)
@pytest.mark.parametrize(("function", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(
    command: str, function: str, message: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "bad.py").write_text("import nowhere")
    (tmp_path / "syntax.py").write_text("\ndef make(:")
    (tmp_path / "at_once.py").write_text("\nclass Mine(nn.Module): ...")
    monkeypatch.chdir(tmp_path)
    configurations = [] if command == "plan" else ["dense"]
    assert main([command, *configurations, "--model", function]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "dense", "--model", "a:b", "--task", "lm"], "three things to train: give one"),
        (["plan", "--model", "a:b", "--task", "lm"], "give one"),
        (
            ["train", "dense", "--set", "width=8", "--set", "width=9"],
            "an option of lm is given twice: width=8, width=9",
        ),
        (
            ["train", "dense", "--task", "ptb", "--data", "a", "--set", "folder=b"],
            "an option of ptb is given twice: folder=a, folder=b",
        ),
        (
            ["plan", "--model", "a:b", "--set", "function=c:d"],
            "an option of own is given twice: function=a:b, function=c:d",
        ),
        (
            ["train", "dense", "--pretrained", "a", "--set", "pretrained=b"],
            "an option of lm is given twice: pretrained=b, pretrained=a",
        ),
        (["bench", "dense", "--model", "a:b", "--layers", "2"], "a:b has sizes of its own: layers"),
        (
            ["train", "dense", "--model", f"{__file__}:make", "--set", "width=2"],
            "there is no option of own named 'width'",
        ),
    ],
)
def test_what_does_not_go_together_is_named(arguments: list, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def needy():
    def held_out():
        import nowhere  # pyright: ignore[reportMissingImports]  # noqa: F401

    def loss(model, batch):
        held_out()

    return torch.nn.Linear(2, 2), lambda rank, world: held_out(), loss, held_out


def test_a_package_that_a_users_function_lacks_is_not_gradwires() -> None:
    task = UserModel(function=named(needy))
    calls = (
        lambda: task.training_loss(torch.nn.Linear(2, 2), 0),
        lambda: task.held_out_size,
        lambda: task.epoch_steps(2),
    )
    for call in calls:
        with pytest.raises(ValueError, match="needy cannot import what it needs: No module named 'nowhere'"):
            call()


def test_a_loss_that_is_no_number_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 0's traceback stood above it."""
    options = ["--model", f"{__file__}:wrong_loss", "--steps", "1", "--out", str(tmp_path)]
    assert main(["train", "dense", *options]) == 1
    err = capfd.readouterr().err
    assert "wrong_loss: loss(model, batch) gives a torch.float32 tensor of shape (2, 2), not one number" in err
    assert "Traceback" not in err


def wrong_loss():
    return torch.nn.Linear(2, 2), lambda rank, world: [torch.ones(2, 2)], lambda model, batch: model(batch)
