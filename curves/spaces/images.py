"""Small convolutional networks on small images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from curves.alone import Dropout
from curves.collection import Collection, Params
from curves.recipes import Recipe
from curves.spaces.tabular import fit
from curves.stacks import Drop, Initial, Stack, affine, wide
from curves.tasks import Task, TaskRecipe, image_task
from freezethaw.space import Choice, Float, Int, Space

KERNEL = 3

SPACE = Space(
    {
        "learning_rate": Float(1e-4, 1.0, log=True),
        "batch_size": Int(16, 256, log=True),
        "channels": Int(4, 32, log=True),
        "layers": Int(1, 3),
        "hidden": Int(16, 128, log=True),
        "activation": Choice(["relu", "tanh"]),
        "dropout": Float(0.0, 0.6),
        "weight_decay": Float(1e-6, 1e-1, log=True),
        "label_smoothing": Float(0.0, 0.3),
        "optimizer": Choice(["sgd", "adam"]),
        "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"}),
        "final_rate": Float(1e-3, 1.0, log=True),
    }
)


def recipe(params: Params) -> Recipe:
    """The learning rate falls exponentially to `final_rate` times its first value."""
    return Recipe(
        batch_size=params["batch_size"],
        learning_rate=params["learning_rate"],
        optimizer=params["optimizer"],
        momentum=params.get("momentum", 0.0),
        weight_decay=params["weight_decay"],
        schedule="exponential",
        final_share=params["final_rate"],
        label_smoothing=params["label_smoothing"],
    )


def strides(side: int, layers: int) -> list[int]:
    """Return the strides of the convolutions: images are halved down to 7 pixels or fewer."""
    taken = []
    for _ in range(layers):
        taken.append(2 if side > 7 else 1)
        side = -(-side // taken[-1])
    return taken


def channels(params: Params) -> list[int]:
    """Return the channels of every layer, the image's one included: they double once."""
    first = params["channels"]
    return [1, first, *[2 * first] * (params["layers"] - 1)]


def multiply_adds(params: Params, task: Task) -> float:
    """Count the products of the convolutions and of the two layers behind them."""
    side, total = task.inputs.shape[1], 0
    widths = channels(params)
    for stride, a, b in zip(strides(side, params["layers"]), widths, widths[1:], strict=False):
        side = -(-side // stride)
        total += side * side * KERNEL * KERNEL * a * b
    return float(total + widths[-1] * params["hidden"] + params["hidden"] * task.n_classes)


class ConvStack(Stack):
    """Convolutions, the mean over places, and two layers."""

    def __init__(self, configs: Sequence[Params], task: Task, initial: Initial) -> None:
        depth = max(params["layers"] for params in configs)
        side = task.inputs.shape[1]
        self.strides = strides(side, depth)
        self.weights = []
        self.floats_per_row = 0
        now, size = [1] * len(configs), 1
        for layer, stride in enumerate(self.strides):
            side = -(-side // stride)
            has = [layer < params["layers"] for params in configs]
            fan_in = [n if h else 0 for n, h in zip(now, has, strict=True)]
            fan_out = [
                channels(p)[layer + 1] if h else 0 for p, h in zip(configs, has, strict=True)
            ]
            now = [after or before for after, before in zip(fan_out, now, strict=True)]
            size_in, size = size, wide(max(now))
            self.weights += initial.linear(
                fan_in, fan_out, taps=KERNEL**2, size_in=size_in, size_out=size
            )
            self.floats_per_row = max(self.floats_per_row, side**2 * KERNEL**2 * size_in)
        hidden = [params["hidden"] for params in configs]
        self.weights += initial.linear(now, hidden, size_in=size, size_out=wide(max(hidden)))
        n_classes = [task.n_classes] * len(configs)
        self.weights += initial.linear(hidden, n_classes, size_in=wide(max(hidden)))
        self.layers = [
            initial.each([float(layer < params["layers"]) for params in configs]) > 0
            for layer in range(depth)
        ]
        self.tanh = initial.each([float(p["activation"] == "tanh") for p in configs], 5) > 0
        self.dropout = initial.each([params["dropout"] for params in configs])

    def forward(self, weights: Sequence[Tensor], inputs: Tensor, drop: Drop) -> Tensor:
        """[network or 1, row, height, width] to [network, row, class]."""
        values = inputs.unsqueeze(4)  # [network, row, height, width, channel]
        means = None
        for layer, (has_layer, stride) in enumerate(zip(self.layers, self.strides, strict=True)):
            weight, bias = weights[2 * layer : 2 * layer + 2]
            values = self._activate(affine(_patches(values, stride), weight, bias))
            # A network of fewer layers reads off the places where its last layer ends.
            mean = values.mean(dim=(2, 3))
            means = mean if means is None else torch.where(has_layer, mean, fit(means, mean))
        assert means is not None
        hidden_in, hidden_bias, out, out_bias = weights[-4:]
        hidden = self._activate(affine(means, hidden_in, hidden_bias))
        return affine(drop(hidden, self.dropout), out, out_bias)

    def _activate(self, values: Tensor) -> Tensor:
        tanh = self.tanh if values.dim() == 5 else self.tanh.flatten(2)
        return torch.where(tanh, values.tanh(), values.relu())


def _patches(values: Tensor, stride: int) -> Tensor:
    """What a kernel sees at every place: [network, row, height, width, channel and tap]."""
    padded = F.pad(values, (0, 0, 1, 1, 1, 1))
    windows = padded.unfold(2, KERNEL, stride).unfold(3, KERNEL, stride)
    return windows.flatten(4)


class ConvNet(nn.Module):
    """One of them."""

    def __init__(self, params: Params, task: Task) -> None:
        super().__init__()
        widths = channels(params)
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(a, b, KERNEL, stride=stride, padding=1)
                for a, b, stride in zip(
                    widths,
                    widths[1:],
                    strides(task.inputs.shape[1], params["layers"]),
                    strict=False,
                )
            ]
        )
        self.hidden = nn.Linear(widths[-1], params["hidden"])
        self.out = nn.Linear(params["hidden"], task.n_classes)
        self.activation: Any = {"relu": torch.relu, "tanh": torch.tanh}[params["activation"]]
        self.dropout = params["dropout"]

    def forward(self, inputs: Tensor, drop: Dropout) -> Tensor:
        """[row, height, width] to [row, class]."""
        values = inputs.unsqueeze(1)
        for convolution in self.convolutions:
            values = self.activation(convolution(values))
        hidden = self.activation(self.hidden(values.mean(dim=(2, 3))))
        return torch.as_tensor(self.out(drop(hidden, self.dropout)))


IMAGES = Collection(
    name="images",
    title="small convolutional networks on images",
    space=SPACE,
    batch_sizes=(16, 32, 64, 128, 256),
    tasks=(
        TaskRecipe(name="fashion", dataset="fashion", most_rows=2000, most_valid_rows=1000),
        TaskRecipe(name="fashion_small", dataset="fashion", most_rows=600, most_valid_rows=1000),
        TaskRecipe(
            name="fashion_mislabelled",
            dataset="fashion",
            most_rows=1500,
            most_valid_rows=1000,
            mislabelled=0.4,
        ),
        TaskRecipe(
            name="fashion_occluded",
            dataset="fashion",
            most_rows=1500,
            most_valid_rows=1000,
            occluded=14,
        ),
        TaskRecipe(
            name="optdigits", dataset="optdigits_images", most_rows=3000, most_valid_rows=1000
        ),
        TaskRecipe(
            name="optdigits_noisy",
            dataset="optdigits_images",
            most_rows=1500,
            most_valid_rows=1000,
            noise=1.0,
        ),
        TaskRecipe(name="mnist_small", dataset="mnist", most_rows=1000, most_valid_rows=1000),
        TaskRecipe(
            name="mnist_noisy", dataset="mnist", most_rows=2000, most_valid_rows=1000, noise=1.0
        ),
    ),
    test_datasets=("mnist",),
    make_task=image_task,
    recipe=recipe,
    stack=ConvStack,
    network=ConvNet,
    multiply_adds=multiply_adds,
    quirks=(
        "`mislabelled` draws the class of 40% of the training rows anew; the validation rows keep "
        "theirs. `noisy` adds normal noise of one standard deviation to every image, `occluded` "
        "blanks a square of 14 by 14 pixels.",
        "Validation has 1,000 images: scores come in steps of 0.001.",
        "The layers see the mean over places, so that most runs take off late.",
    ),
)
