"""How much memory is left: of the host within its limits, and of CUDA devices in use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from freezethaw.isolation import loaded_torch


class MemoryProbe(Protocol):
    """The one question that eviction asks of the world."""

    def host_free_fraction(self) -> float | None:
        """The share of the host's memory that is free (None where it cannot be told)."""

    def device_free_fraction(self) -> float | None:
        """The same of the fullest CUDA device that this process uses (None without one)."""


class SystemMemory:
    """The memory of this machine. `root` is where `/proc` and `/sys` are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def host_free_fraction(self) -> float | None:
        """The least of what the machine and each control group above this process have left."""
        machine = self._machine()
        fractions = [] if machine is None else [machine]
        fractions += self._control_groups()
        return min(fractions, default=None)

    def device_free_fraction(self) -> float | None:
        """What is free or cached by torch for reuse, on the fullest device it has memory on."""
        torch = loaded_torch()
        if torch is None or not torch.cuda.is_initialized():
            return None
        fractions = []
        for device in range(torch.cuda.device_count()):
            # Asking about a device that is not in use would take memory on it.
            reserved = torch.cuda.memory_reserved(device)
            if reserved:
                free, total = torch.cuda.mem_get_info(device)
                fractions.append((free + reserved - torch.cuda.memory_allocated(device)) / total)
        return min(fractions, default=None)

    def _machine(self) -> float | None:
        try:
            lines = (self._root / "proc/meminfo").read_text().splitlines()
            kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
            return kilobytes["MemAvailable"] / kilobytes["MemTotal"]
        except (OSError, ValueError, KeyError, IndexError):
            pass
        try:
            return os.sysconf("SC_AVPHYS_PAGES") / os.sysconf("SC_PHYS_PAGES")
        except (OSError, ValueError, AttributeError, ZeroDivisionError):
            return None  # macOS and Windows: the limit in count still holds

    def _control_groups(self) -> list[float]:
        """Free shares by cgroup limits: those of containers, Slurm jobs and systemd units."""
        return [
            fraction
            for folder, limit, usage, reclaimable in self._group_files()
            if (fraction := _free_of(folder, limit, usage, reclaimable)) is not None
        ]

    def _group_files(self) -> Iterator[tuple[Path, str, str, str]]:
        try:
            lines = (self._root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers == "":  # version 2
                base = self._root / "sys/fs/cgroup"
                names = ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                base = self._root / "sys/fs/cgroup/memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            group = Path(path.lstrip("/"))
            for part in (group, *group.parents):
                yield base / part, *names


def _free_of(folder: Path, limit: str, usage: str, reclaimable: str) -> float | None:
    """The free share of one control group; None where it sets no limit."""
    try:
        limit_bytes = int((folder / limit).read_text())
        used_bytes = int((folder / usage).read_text())
        if not 0 < limit_bytes < 1 << 60:  # version 1 writes "no limit" as a huge number
            return None
        for line in (folder / "memory.stat").read_text().splitlines():
            name, count = line.split()
            if name == reclaimable:  # cached files give way to whoever asks
                used_bytes -= int(count)
    except (OSError, ValueError):
        return None
    return min(1.0, max(0.0, 1.0 - used_bytes / limit_bytes))
