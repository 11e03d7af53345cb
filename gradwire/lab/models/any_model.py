"""Any model of transformers, from a configuration alone or with weights from a local folder: nothing is downloaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradwire.lab.models.hub import Answers, Logits
from gradwire.unknown import unknown

PREFIX = "hf:"
"""A model of the user's choice is written `hf:TYPE` or `hf:TYPE,name=value,...`, such as `hf:llama,hidden_size=256`."""

_KINDS: dict[str, tuple[str, Callable[[nn.Module], nn.Module]]] = {
    "images": ("AutoModelForImageClassification", Logits),
    "text": ("AutoModelForCausalLM", Logits),
    "answers": ("AutoModelForQuestionAnswering", Answers),
}


def chosen(kind: str, text: str, **sizes: Any) -> nn.Module:
    """The model that `hf:TYPE,name=value,...` says, for "images", "text" or "answers"; `sizes` come from the data.

    Raises ValueError for an unknown type or option, and for a type that has no model of this kind."""
    from transformers import AutoConfig

    name, *options = text.removeprefix(PREFIX).split(",")
    try:
        # the type's own options, and those of the data where it has them
        known = AutoConfig.for_model(name).to_dict()
    except ValueError:
        raise ValueError(f"{text!r}: transformers has no model type {name!r}; write hf:TYPE such as hf:gpt2") from None
    given = dict(_option(option, known, name) for option in options)
    fitting = {key: value for key, value in sizes.items() if key in known or key == "num_labels"}
    config = AutoConfig.for_model(name, **fitting, **given)
    _forget_special_tokens(config)
    try:
        model = _auto(kind).from_config(config)
    except ValueError as error:
        raise ValueError(f"{text!r} cannot be built for {kind}: {str(error).splitlines()[0]}") from None
    return _KINDS[kind][1](model)


def pretrained(kind: str, folder: Path, vocabulary: int = 0, **sizes: Any) -> nn.Module:
    """The model whose config.json and model.safetensors lie in `folder`; heads of another size start afresh.

    Raises ValueError where the folder holds no such files, and where its words are fewer than `vocabulary`."""
    try:
        model = _auto(kind).from_pretrained(
            folder, local_files_only=True, use_safetensors=True, ignore_mismatched_sizes=True, dtype=torch.float32,
            **sizes,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"no weights in {folder}: config.json and model.safetensors are read ({reason})") from None
    # an embedding with fewer rows than the tokenizer has words would be read past its end
    if vocabulary > getattr(model.config, "vocab_size", vocabulary):
        known = model.config.vocab_size
        raise ValueError(f"the tokenizer has {vocabulary} words, the model in {folder} knows {known}: take its own")
    return _KINDS[kind][1](model)


def _auto(kind: str) -> Any:
    import transformers

    return getattr(transformers, _KINDS[kind][0])


def _option(option: str, known: dict[str, Any], model: str) -> tuple[str, Any]:
    """A pair of name and value, of the type that the default has; None counts as a number."""
    name, _, text = option.partition("=")
    if name not in known:
        raise unknown(f"option of {model} named", name, known)
    # the default's type says how the text is read
    kind = type(known[name])
    try:
        if kind is bool:
            return name, {"true": True, "false": False}[text.lower()]
        return name, kind(text) if kind in (int, float, str) else int(text)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", float: "a number", str: "a text"}.get(kind, "a whole number")
        raise ValueError(f"{name} of {model} takes {wanted}, not {text!r}") from None


def _forget_special_tokens(config: Any) -> None:
    """Clears special tokens beyond the data's vocabulary."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if (getattr(config, name, None) or 0) >= getattr(config, "vocab_size", 0):
            setattr(config, name, None)
