"""Each trial's random streams and torch modes are its own: interleaved trials do not show.

A suspended generator may have stopped inside `with torch.no_grad():`, inside an autocast block, or
between two draws from Python's, numpy's or torch's global random stream. `Isolation.run` puts the
trial's own states in place for the length of one call and the caller's back afterwards, also when
the call raises.

Torch is never imported here: only a process that has loaded it has states of it to keep.
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

_AUTOCAST_DEVICES = ("cpu", "cuda")


def loaded_torch() -> Any:
    """The torch module if this process has imported it, else None."""
    return sys.modules.get("torch")


@dataclass(frozen=True, kw_only=True)
class RandomState:
    """Where the global random streams stand. `torch` and `cuda` are None where not in use."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: bytes | None
    cuda: tuple[bytes, ...] | None
    """One state per device, once CUDA has been initialised."""

    @classmethod
    def capture(cls) -> RandomState:
        """Read the process's global random streams."""
        torch = loaded_torch()
        with_cuda = torch is not None and torch.cuda.is_initialized()
        return cls(
            python=random.getstate(),
            numpy=dict(np.random.get_state(legacy=False)),
            torch=None if torch is None else torch.get_rng_state().numpy().tobytes(),
            cuda=tuple(s.numpy().tobytes() for s in torch.cuda.get_rng_state_all())
            if with_cuda
            else None,
        )

    def restore(self) -> None:
        """Set the process's global random streams to this."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch = loaded_torch()
        if torch is None or self.torch is None:
            return
        torch.set_rng_state(_byte_tensor(torch, self.torch))
        started = torch.cuda.is_initialized()
        if self.cuda is not None and (started or torch.cuda.is_available()):
            # Seeding before CUDA starts is queued and would override what is set here.
            torch.cuda.init()
            for device, state in enumerate(self.cuda[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(_byte_tensor(torch, state), device)
        elif self.cuda is None and started:
            # CUDA started since: what it would have been seeded with had it started under us.
            torch.cuda.manual_seed_all(torch.initial_seed())

    def to_json(self) -> str:
        """Encode as text; no pickle."""
        version, words, gauss = self.python
        fields = {
            "python": {"version": version, "words": words, "gauss": gauss},
            "numpy": self.numpy,
            "torch": None if self.torch is None else base64.b64encode(self.torch).decode(),
            "cuda": None
            if self.cuda is None
            else [base64.b64encode(state).decode() for state in self.cuda],
        }
        return json.dumps(fields, default=lambda array: array.tolist())

    @classmethod
    def from_json(cls, text: str) -> RandomState:
        """Decode what `to_json` wrote."""
        fields = json.loads(text)
        python, numpy_state = fields["python"], fields["numpy"]
        if "key" in numpy_state["state"]:
            numpy_state["state"]["key"] = np.asarray(numpy_state["state"]["key"], dtype=np.uint32)
        return cls(
            python=(python["version"], tuple(python["words"]), python["gauss"]),
            numpy=numpy_state,
            torch=None if fields["torch"] is None else base64.b64decode(fields["torch"]),
            cuda=None
            if fields["cuda"] is None
            else tuple(base64.b64decode(state) for state in fields["cuda"]),
        )


def seed_everything(seed: int) -> None:
    """Seed the global streams of Python, numpy and (where loaded) torch with a 32-bit seed."""
    random.seed(seed)
    np.random.seed(seed)
    torch = loaded_torch()
    if torch is not None:
        torch.manual_seed(seed)


@dataclass(frozen=True, kw_only=True)
class _Modes:
    """Torch's modes apart from inference mode, which only a guard object can change."""

    grad: bool
    autocast: tuple[tuple[bool, Any], ...]
    """(enabled, dtype) for each of _AUTOCAST_DEVICES."""
    autocast_cache: bool
    autocast_nesting: int
    dtype: Any

    @classmethod
    def capture(cls, torch: Any) -> _Modes:
        nesting = torch.autocast_increment_nesting() - 1
        torch.autocast_decrement_nesting()
        return cls(
            grad=torch.is_grad_enabled(),
            autocast=tuple(
                (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                for device in _AUTOCAST_DEVICES
            ),
            autocast_cache=torch.is_autocast_cache_enabled(),
            autocast_nesting=nesting,
            dtype=torch.get_default_dtype(),
        )

    @classmethod
    def fresh(cls, torch: Any) -> _Modes:
        """The modes of a torch that has just been imported."""
        return cls(
            grad=True,
            autocast=tuple((False, torch.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES),
            autocast_cache=True,
            autocast_nesting=0,
            dtype=torch.float32,
        )

    def restore(self, torch: Any) -> None:
        torch.set_grad_enabled(self.grad)
        for device, (enabled, dtype) in zip(_AUTOCAST_DEVICES, self.autocast, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.autocast_cache)
        torch.set_default_dtype(self.dtype)
        # Autocast empties its cache of cast weights when the outermost block ends, and counts
        # blocks per thread. With a suspended trial's block counted, another trial's cache would
        # never be emptied: it would go on computing with the weights of its first step.
        nesting = torch.autocast_increment_nesting()
        while nesting > self.autocast_nesting:
            nesting = torch.autocast_decrement_nesting()
        while nesting < self.autocast_nesting:
            nesting = torch.autocast_increment_nesting()
        torch.clear_autocast_cache()


@dataclass(frozen=True, kw_only=True)
class _Caller:
    """What `run` found and must put back."""

    random: RandomState
    modes: _Modes | None
    inference: bool
    guard: Any
    """The guard that brought the trial's inference mode in, if one was needed."""


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """What torch is like when it has just been imported, without gradients, for what we compute.

    The caller's default device and dtype, inference mode and autocast are back afterwards.
    """
    torch = loaded_torch()
    if torch is None:
        yield
        return
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.device("cpu"),
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)


class Isolation:
    """The random streams, torch modes and context variables of one trial.

    A trial starts with its streams seeded from `seed`, in the caller's modes. Torch's own stream
    is seeded at the start only if torch is loaded by then: `import torch` at the top of the file.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random: RandomState | None = None
        self._modes: _Modes | None = None
        self._inference = False
        self._away: Any = None  # the guard that took the trial's inference mode out, if needed
        self._context: contextvars.Context | None = None

    @property
    def random(self) -> RandomState | None:
        """Where the trial's streams stand (None before it has run)."""
        return self._random

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in the trial's states; the caller's are back when this returns."""
        if self._context is None:
            self._context = contextvars.copy_context()
        caller = self._enter()
        try:
            return self._context.run(function, *args, **kwargs)
        finally:
            self._leave(caller)

    def run_aside(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Like `run`, but what is drawn meanwhile does not count: the streams stay put."""
        stood = self._random
        try:
            return self.run(function, *args, **kwargs)
        finally:
            self._random = stood or self._random

    def _enter(self) -> _Caller:
        torch = loaded_torch()
        caller_random = RandomState.capture()
        if self._random is None:
            seed_everything(self._seed)
        else:
            self._random.restore()
            if torch is not None and self._random.torch is None:
                torch.manual_seed(self._seed)  # loaded since this trial ran last
        if torch is None:
            return _Caller(random=caller_random, modes=None, inference=False, guard=None)
        modes, inference = _Modes.capture(torch), torch.is_inference_mode_enabled()
        guard = self._enter_inference(torch, inference)
        if self._modes is not None:
            self._modes.restore(torch)
        return _Caller(random=caller_random, modes=modes, inference=inference, guard=guard)

    def _enter_inference(self, torch: Any, current: bool) -> Any:
        if self._away is not None:
            self._away.__exit__(None, None, None)
            self._away = None
        elif self._modes is not None and self._inference != current:
            return _inference_guard(torch, self._inference)
        return None

    def _leave(self, caller: _Caller) -> None:
        torch = loaded_torch()
        if torch is not None:
            self._modes, self._inference = _Modes.capture(torch), torch.is_inference_mode_enabled()
            if caller.guard is not None:
                caller.guard.__exit__(None, None, None)
            if torch.is_inference_mode_enabled() != caller.inference:
                self._away = _inference_guard(torch, caller.inference)
            (caller.modes or _Modes.fresh(torch)).restore(torch)
        first_run = self._random is None
        self._random = RandomState.capture()
        caller.random.restore()
        if first_run and torch is not None and not torch.cuda.is_initialized():
            # Seeding the trial has queued its seed for when CUDA starts: queue the caller's.
            torch.cuda.manual_seed_all(torch.initial_seed())


def _inference_guard(torch: Any, enabled: bool) -> Any:
    """Enter inference mode, or leave it, until the guard's `__exit__` puts back all it found."""
    guard = torch.inference_mode(enabled)
    guard.__enter__()
    return guard


def _byte_tensor(torch: Any, data: bytes) -> Any:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
