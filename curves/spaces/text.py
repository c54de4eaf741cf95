"""Small transformers that read text and predict the next character."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from curves.alone import Dropout
from curves.collection import Collection, Params
from curves.recipes import Recipe
from curves.stacks import Drop, Initial, Stack, affine, fused
from curves.tasks import Task, TaskRecipe, text_task
from freezethaw.space import Choice, Float, Int, Space

HEAD = 16
"""The width of an attention head."""
EPSILON = 1e-5

SPACE = Space(
    {
        "learning_rate": Float(1e-4, 1.0, log=True),
        "batch_size": Int(8, 64, log=True),
        "heads": Int(1, 4),
        "layers": Int(1, 3),
        "feedforward": Int(1, 4),
        "dropout": Float(0.0, 0.5),
        "weight_decay": Float(1e-6, 1e-1, log=True),
        "optimizer": Choice(["sgd", "adam"]),
        "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"}),
        "beta2": Float(0.9, 0.999, when={"optimizer": "adam"}),
        "warmup": Float(0.0, 0.3),
        "clip": Float(0.1, 10.0, log=True),
        "schedule": Choice(["constant", "cosine"]),
    }
)


def recipe(params: Params) -> Recipe:
    """With warm-up, and gradients clipped."""
    return Recipe(
        batch_size=params["batch_size"],
        learning_rate=params["learning_rate"],
        optimizer=params["optimizer"],
        momentum=params.get("momentum", 0.0),
        beta2=params.get("beta2", 0.999),
        weight_decay=params["weight_decay"],
        schedule=params["schedule"],
        warmup=params["warmup"],
        clip=params["clip"],
    )


def multiply_adds(params: Params, task: Task) -> float:
    """Count the products of attention, feed-forward layers and the last layer, for one piece."""
    width, length = HEAD * params["heads"], task.inputs.shape[1]
    layer = (4 + 2 * params["feedforward"]) * width**2 + 2 * length * width
    return float(length * (params["layers"] * layer + width * task.n_classes))


class Transformers(Stack):
    """Transformers of various widths and depths, normalised before every sublayer."""

    WEIGHTS_PER_LAYER = 16

    def __init__(self, configs: Sequence[Params], task: Task, initial: Initial) -> None:
        widths = [HEAD * params["heads"] for params in configs]
        depth = max(params["layers"] for params in configs)
        length = task.inputs.shape[1]
        self.heads = max(params["heads"] for params in configs)
        self.has = initial.mask(widths, 4)
        self.width = initial.each(widths, 4)
        self.dropout = initial.each([params["dropout"] for params in configs], 4)
        norm = [self.has.flatten(1).clone(), torch.zeros_like(self.has).flatten(1)]
        self.weights = [initial.normal(task.n_classes, widths), initial.normal(length, widths)]
        self.dropouts: list[Tensor] = []
        for layer in range(depth):
            has_layer = [layer < params["layers"] for params in configs]
            inner = [w if has else 0 for w, has in zip(widths, has_layer, strict=True)]
            wide = [w * p["feedforward"] for w, p in zip(inner, configs, strict=True)]
            size = max(widths)
            for _ in range(4):  # queries, keys, values, and what attention gives
                self.weights += initial.linear(inner, inner, size_in=size, size_out=size)
            self.weights += initial.linear(inner, wide, size_in=size)
            self.weights += initial.linear(wide, inner, size_out=size)
            mask = initial.each([float(has) for has in has_layer], 2)
            self.weights += [weight * mask for weight in (*norm, *norm)]
            # A layer that a network lacks drops all that it would add.
            rates = [
                p["dropout"] if has else 1.0 for p, has in zip(configs, has_layer, strict=True)
            ]
            self.dropouts.append(initial.each(rates, 4))
        self.weights += [weight.clone() for weight in norm]
        self.weights += initial.linear(widths, [task.n_classes] * len(configs))
        widest = max(w * max(p["feedforward"], 4) for w, p in zip(widths, configs, strict=True))
        self.floats_per_row = length * widest

    def forward(self, weights: Sequence[Tensor], inputs: Tensor, drop: Drop) -> Tensor:
        """[network or 1, row, place] to [network, row, place, class]."""
        tokens, places, *rest = weights
        n_networks = tokens.shape[0]
        characters = inputs.expand(n_networks, -1, -1).flatten(1)
        index = characters.unsqueeze(2).expand(-1, -1, tokens.shape[2])
        values = tokens.gather(1, index).view(n_networks, *inputs.shape[1:], -1)
        values = drop(values + places.unsqueeze(1), self.dropout)
        for layer, rate in enumerate(self.dropouts):
            own = rest[layer * self.WEIGHTS_PER_LAYER : (layer + 1) * self.WEIGHTS_PER_LAYER]
            attended = self._attend(self._normalise(values, *own[12:14]), own)
            values = values + drop(attended, rate)
            inner = affine(self._normalise(values, *own[14:16]), *own[8:10]).relu()
            values = values + drop(affine(inner, *own[10:12]), rate)
        return affine(self._normalise(values, *rest[-4:-2]), *rest[-2:])

    def _attend(self, values: Tensor, own: Sequence[Tensor]) -> Tensor:
        n_networks, n_rows, length, width = values.shape
        split = (n_networks * n_rows, length, self.heads, HEAD)
        q, k, v = (
            affine(values, *own[2 * i : 2 * i + 2]).view(split).transpose(1, 2) for i in range(3)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(n_networks, n_rows, length, width)
        return affine(mixed, *own[6:8])

    def _normalise(self, values: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        normal = fused(_normal, values.is_cuda)
        result: Tensor = normal(values, gain, bias, self.has, self.width)
        return result


def _normal(values: Tensor, gain: Tensor, bias: Tensor, has: Tensor, width: Tensor) -> Tensor:
    """Layer normalisation over the places that a network has: the others do not even count."""
    mean = (values * has).sum(-1, keepdim=True) / width
    centred = (values - mean) * has
    variance = centred.square().sum(-1, keepdim=True) / width
    scaled = centred * (variance + EPSILON).rsqrt()
    return scaled * gain[:, None, None] + bias[:, None, None]


class _Layer(nn.Module):
    """Attention and a feed-forward layer. The order of the parameters is that of `Transformers`."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        width, wide = HEAD * params["heads"], HEAD * params["heads"] * params["feedforward"]
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.widen, self.narrow = nn.Linear(width, wide), nn.Linear(wide, width)
        self.before_attention, self.before_widening = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.dropout = params["heads"], params["dropout"]

    def forward(self, values: Tensor, drop: Dropout) -> Tensor:
        normal = self.before_attention(values)
        q, k, v = (
            linear(normal).unflatten(2, (self.heads, HEAD)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        values = values + drop(self.mix(mixed), self.dropout)
        inner = torch.relu(self.widen(self.before_widening(values)))
        return values + drop(self.narrow(inner), self.dropout)


class Transformer(nn.Module):
    """One of them."""

    def __init__(self, params: Params, task: Task) -> None:
        super().__init__()
        width = HEAD * params["heads"]
        self.tokens = nn.Embedding(task.n_classes, width)
        self.places = nn.Embedding(task.inputs.shape[1], width)
        self.layers = nn.ModuleList([_Layer(params) for _ in range(params["layers"])])
        self.normal = nn.LayerNorm(width)
        self.out = nn.Linear(width, task.n_classes)
        self.dropout = params["dropout"]

    def forward(self, inputs: Tensor, drop: Dropout) -> Tensor:
        """[row, place] to [row, place, class]."""
        values = drop(self.tokens(inputs) + self.places.weight, self.dropout)
        for layer in self.layers:
            values = layer(values, drop)
        return torch.as_tensor(self.out(self.normal(values)))


TEXT = Collection(
    name="text",
    title="small transformers that predict the next character of a text",
    space=SPACE,
    batch_sizes=(8, 16, 32, 64),
    tasks=tuple(
        TaskRecipe(name=name, dataset=name, most_rows=1000)
        for name in (
            "bible", "fortunes", "python_docs", "c_headers", "wordnet", "german_fortunes",
            "manpages", "foldoc",
        )
    ),
    test_datasets=("manpages", "foldoc"),
    make_task=text_task,
    recipe=recipe,
    stack=Transformers,
    network=Transformer,
    multiply_adds=multiply_adds,
    score="loss",
    quirks=(
        "An epoch is 64,000 characters in pieces of 64; every fifth piece of the text validates.",
        "Losses are in nats per character. A bad run's can be far above the untrained network's.",
    ),
    splits=3,
)  # fmt: skip
