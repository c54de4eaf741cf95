"""Weights files: safetensors, half precision, with the network's shape and limits in the header."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from freezethaw.errors import ExtrapolatorError
from freezethaw.pfn.model import CurveNetwork, Shape

DEFAULT = "cfbo-nt"
"""What `ft.tune` uses when nothing better is given: trained on the synthetic prior alone."""
FORMAT = "1"


def shipped() -> list[str]:
    """Names of the weights in this package."""
    folder = resources.files("freezethaw.pfn") / "weights"
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(".safetensors") for name in names if name.endswith("tensors"))


def find(name_or_path: str | Path) -> Path:
    """A shipped name, or a file."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    entry = resources.files("freezethaw.pfn") / "weights" / f"{name_or_path}.safetensors"
    if entry.is_file():
        return Path(str(entry))
    raise ExtrapolatorError(
        f"weights {str(name_or_path)!r}: neither a file nor a shipped name; "
        f"shipped are {', '.join(shipped()) or 'none'}"
    )


def save(path: Path, network: CurveNetwork, **about: Any) -> None:
    """Write the network in half precision; `about` says how it was made."""
    tensors = {
        key: value.detach().to("cpu", torch.float16).contiguous()
        for key, value in network.state_dict().items()
    }
    header = {
        "format": FORMAT,
        "shape": json.dumps(network.shape.to_json()),
        "borders": json.dumps({"kind": "uniform", "low": 0.0, "high": 1.0}),
        "about": json.dumps(about),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata=header)


def load(path: Path) -> CurveNetwork:
    """Read a network in full precision, ready to forecast."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            state = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118
        if header.get("format") != FORMAT:
            raise ExtrapolatorError(
                f"{path}: weights format {header.get('format')!r}; this version reads {FORMAT!r}"
            )
        network = CurveNetwork(Shape(**json.loads(header["shape"])))
        network.load_state_dict(state)
    except (SafetensorError, KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ExtrapolatorError(f"{path}: not a weights file of freezethaw ({error})") from error
    return network.eval().requires_grad_(False)


def about(path: Path) -> dict[str, Any]:
    """How the weights were made, as recorded in the file."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
    made: dict[str, Any] = json.loads(header.get("about", "{}"))
    return made
