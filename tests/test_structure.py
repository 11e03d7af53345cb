"""Where things may live."""

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch

import gradwire
from gradwire.ops.native import library
from tests.support.kernel_cases import needs_library
from tests.support.where_tested import where_tested

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "gradwire"
CORE = ("runtime", "ops", "compressors", "communicators", "frontends", "transports")
MAY_USE_THE_NETWORK = {
    "transports/direct_sends.py",
    "transports/members.py",
    "transports/played_group.py",  # one that torch's own DDP and hooks take
    "integrations/torchft_replica.py",  # a front end, of shards as well
    "transports/process_group.py",
    "transports/torch_store.py",
}
CHOOSES_BY_DEVICE = {
    "frontends/options/choices.py",  # the sizes of groups
    "runtime/replicas.py",  # which tensors of a state lay on the host, to put them there again
    "runtime/worker/executor.py",
    "transports/card.py",
    "transports/played.py",
    "transports/process_group.py",
}
NAMES_THE_DEVICE = {  # to torch, or to other ranks
    "frontends/checkpoints/distributed_checkpoint.py",
    "integrations/torchft_replica.py",
    "runtime/agreement.py",
    "tuner/profiler.py",
}
MOST_CHOICES_BY_KIND = 6
MAKES_TENSORS = {
    "Tensor", "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace",
    "normal", "ones", "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "tensor", "zeros",
}  # fmt: skip
"""Functions of torch whose result depends on `torch.set_default_dtype` or `torch.set_default_device`."""


def test_only_transports_front_ends_and_the_lab_use_torch_distributed():
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "torch.distributed" in path.read_text()
        and path.relative_to(PACKAGE).parts[0] not in {"frontends", "lab", "torch_private"}
    }
    assert users <= MAY_USE_THE_NETWORK, users - MAY_USE_THE_NETWORK


def test_no_module_is_longer_than_300_lines():
    lengths = {path.relative_to(PACKAGE): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {str(path): length for path, length in lengths.items() if length > 300} == {}


def test_no_class_has_the_name_of_another_and_no_file_but_the_implementations_of_one_function():
    files = Counter(path.name for path in PACKAGE.rglob("*.py") if "ops" not in path.relative_to(PACKAGE).parts)
    del files["__init__.py"]
    classes = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in (files | classes).items() if count > 1] == []


def test_few_modules_beside_ops_ask_for_the_kind_of_device():
    asks = re.compile(r"\.type\b|\.is_cuda\b|\.is_cpu\b|[!=]= CPU\b|import .*\b(on_host|kind_of)\b")
    askers = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if asks.search(path.read_text())}
    outside = {path for path in askers if not path.startswith(("ops/", "lab/", "cli/"))}
    assert outside == CHOOSES_BY_DEVICE | NAMES_THE_DEVICE


def test_files_name_one_version_and_it_has_a_section_of_the_changelog_or_is_unreleased():
    root = PACKAGE.parent
    assert f"\nversion: {gradwire.__version__}\n" in (root / "CITATION.cff").read_text()
    assert re.search(
        rf"^## (Unreleased|{re.escape(gradwire.__version__)} - )", (root / "CHANGELOG.md").read_text(), re.M
    )


def test_few_paths_are_chosen_by_the_kind_of_our_own_objects():
    chosen = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in {"ops", "cli", "lab", "report"}
        for call in _choosing(ast.parse(path.read_text()))
    ]
    assert len(chosen) <= MOST_CHOICES_BY_KIND, chosen


def test_every_tensor_that_is_made_says_its_type_and_device():
    vague = [
        f"{path.relative_to(PACKAGE)}:{call.lineno} {ast.unparse(call)}"
        for path in PACKAGE.rglob("*.py")
        if "lab" not in path.relative_to(PACKAGE).parts  # whose jobs set no default
        for call in _making(ast.parse(path.read_text()))
        if not {"dtype", "device"} <= {keyword.arg for keyword in call.keywords}
    ]
    assert vague == []


def test_every_module_of_the_core_has_a_test_of_its_name_or_a_line_in_the_readme():
    modules = {
        path.relative_to(PACKAGE).with_suffix("")
        for folder in CORE
        for path in (PACKAGE / folder).rglob("*.py")
        if path.name != "__init__.py"
    }
    own = {module for module in modules if (TESTS / module.parent / f"test_{module.name}.py").exists()}
    listed = where_tested()
    assert listed.keys() == modules - own
    assert not [test for tests in listed.values() for test in tests if not (TESTS.parent / test).exists()]


def test_every_test_draws_the_same_whatever_was_drawn_before():
    assert torch.default_generator.initial_seed() == 0


def test_every_fault_of_mutants_is_one_place_in_the_code():
    done = subprocess.run(
        [sys.executable, TESTS / "mutants.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _making(tree: ast.Module) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) in {f"torch.{name}" for name in MAKES_TENSORS}]


def _choosing(tree: ast.Module) -> list[ast.Call]:
    """The calls of isinstance with a class of Gradwire's, but for those that narrow a type or refuse an argument."""
    excused = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    excused += [
        node.test for node in ast.walk(tree) if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise)
    ]
    excused = {inner for node in excused for inner in ast.walk(node)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node not in excused]
    return [call for call in calls if ast.unparse(call.func) == "isinstance" and _names(call.args[1]) & _own_classes()]


def _names(kinds: ast.expr) -> set[str]:
    """Also of those behind a module's name."""
    names = {node.id for node in ast.walk(kinds) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(kinds) if isinstance(node, ast.Attribute)}


@cache
def _own_classes() -> set[str]:
    trees = [
        ast.parse(path.read_text())
        for path in PACKAGE.rglob("*.py")
        if not {"lab", "native"} & {*path.relative_to(PACKAGE).parts}
    ]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def test_the_loader_knows_every_function_of_the_header_and_its_number():
    header = (PACKAGE.parent / "native/gradwire.h").read_text()
    declared = re.findall(r"^GW_API [^(]*?(\w+)\(([^)]*)\)", header, re.M)
    arguments = {name: 0 if given == "void" else given.count(",") + 1 for name, given in declared}
    assert {name: len(types) for name, (_, types) in library.FUNCTIONS.items()} == arguments
    assert re.findall(r"^#define GW_ABI (\d+)$", header, re.M) == [str(library.ABI)]


@needs_library
@pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")
def test_what_kernels_compute_changes_with_the_number(tmp_path):
    """Where the digest changes, raise GW_ABI and ABI: a library that was not built again must be refused."""
    program = tmp_path / "digest"
    kernels = Path(library.library()._name)
    source = PACKAGE.parent / "native/check/digest.cpp"
    build = ["c++", "-std=c++17", "-o", program, source, kernels, f"-Wl,-rpath,{kernels.parent}"]
    subprocess.run(build, check=True, timeout=100)
    said = subprocess.run([program], check=True, capture_output=True, text=True, timeout=100).stdout
    assert (library.ABI, set(re.findall(r": (\w+)$", said, re.M))) == (10, {"ac8bd341d5154610"})


def test_files_that_shell_scripts_name_exist():
    root = PACKAGE.parent
    scripts = [root / "Makefile"]
    for folder in (".ci", ".github/workflows", "native/check"):
        scripts += [
            path for path in (root / folder).rglob("*") if path.suffix in ("", ".sh", ".yml") and path.is_file()
        ]
    named = {
        name
        for script in scripts
        for name in re.findall(r"(?:tests|benchmarks|native)/[\w/]+\.(?:py|sh)\b", script.read_text())
    }
    assert len(named) > 10
    assert not [name for name in sorted(named) if not (root / name).exists()]
