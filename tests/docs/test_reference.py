"""The site's reference: everything that users import, in a family, with parameters that say what they are."""

import inspect
import re
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import gradwire as gw
from gradwire import api
from gradwire.construct import exported
from gradwire.options import Options

pytest.importorskip("mkdocs", reason="the site's generator is not installed")


@pytest.fixture(scope="module")
def reference():
    spec = spec_from_file_location("reference_hook", Path(__file__).parents[2] / "docs" / "hooks" / "reference.py")
    assert spec
    assert spec.loader
    spec.loader.exec_module(module := module_from_spec(spec))
    return module


def test_every_name_stands_in_one_family_and_attach_first(reference) -> None:
    names = [name for own in reference.families().values() for name in own]
    offered = [
        name for name in api.__all__ if inspect.isclass(getattr(gw, name)) or inspect.isfunction(getattr(gw, name))
    ]
    assert sorted(names) == sorted(offered)
    assert names[0] == "attach"


@pytest.mark.parametrize("cls", [*exported(Options).values(), gw.Outer], ids=lambda cls: cls.__name__)
def test_every_option_has_a_type_and_a_meaning(cls: type, reference) -> None:
    shown = list(reference.parameters(cls))
    assert {name for name, *_ in shown} >= {field.name for field in fields(cls) if field.init}
    for name, kind, _, meaning in shown:
        assert kind, name
        assert meaning, name


def test_front_ends_show_their_options(reference) -> None:
    shown = {name: meaning for name, _, _, meaning in reference.parameters(gw.attach)}
    assert all(shown[name] for name in ("memory", "communicator", "candidates", "elastic"))
    assert "candidates" not in {name for name, *_ in reference.parameters(gw.LocalSteps)}


def test_every_integration_of_the_page_is_there(reference) -> None:
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
    assert not {*re.findall(r"gradwire\.integrations\.(\w+)", page)} - {*reference.INTEGRATIONS}
