"""How much memory is left, read from made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from freezethaw.memory import SystemMemory

GIB = 1 << 30


def machine(root: Path, files: dict[str, str]) -> SystemMemory:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SystemMemory(root)


MEMINFO = {
    "proc/meminfo": "MemTotal:       1000 kB\nMemFree:        100 kB\nMemAvailable:   600 kB\n"
    "HugePages_Total:       0\n"
}


def test_the_host_counts_what_is_available_not_what_is_free(tmp_path: Path):
    assert machine(tmp_path, MEMINFO).host_free_fraction() == pytest.approx(0.6)


def test_a_version_2_group_above_the_process_limits_it(tmp_path: Path):
    memory = machine(
        tmp_path,
        {
            **MEMINFO,
            "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
            "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
            "sys/fs/cgroup/slurm/job_7/memory.max": str(8 * GIB),
            "sys/fs/cgroup/slurm/job_7/memory.current": str(7 * GIB),
            # Cached files do not count: 6 of 8 GiB are really used.
            "sys/fs/cgroup/slurm/job_7/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        },
    )
    assert memory.host_free_fraction() == pytest.approx(0.25)


def test_a_version_1_group_limits_it_and_its_huge_number_does_not(tmp_path: Path):
    base = "sys/fs/cgroup/memory"
    files = {
        **MEMINFO,
        "proc/self/cgroup": "5:devices:/\n4:cpu,memory:/box\n0::/\n",
        f"{base}/memory.limit_in_bytes": "9223372036854771712",
        f"{base}/memory.usage_in_bytes": str(GIB),
        f"{base}/memory.stat": "total_inactive_file 0\n",
        f"{base}/box/memory.limit_in_bytes": str(4 * GIB),
        f"{base}/box/memory.usage_in_bytes": str(3 * GIB + GIB // 2),
        f"{base}/box/memory.stat": f"total_cache 5\ntotal_inactive_file {GIB // 2}\n",
    }
    assert machine(tmp_path, files).host_free_fraction() == pytest.approx(0.25)


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path):
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "1000",
        "sys/fs/cgroup/memory.current": "1500",
        "sys/fs/cgroup/memory.stat": "",
    }
    assert machine(tmp_path, {**MEMINFO, **files}).host_free_fraction() == 0


def test_without_proc_the_system_is_asked(tmp_path: Path):
    free = SystemMemory(tmp_path).host_free_fraction()
    assert free is None or 0 < free <= 1


def test_this_machine_has_some_memory_left_and_no_device_in_use():
    free = SystemMemory().host_free_fraction()
    assert free is None or 0 < free <= 1
    assert SystemMemory().device_free_fraction() is None


@pytest.mark.gpu
def test_a_device_counts_what_torch_caches_as_free():
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    tensor = torch.zeros(total // 4, dtype=torch.uint8, device="cuda")
    with_it = SystemMemory().device_free_fraction()
    assert with_it is not None
    del tensor
    assert torch.cuda.memory_reserved(0) > total // 5  # still held by torch
    without = SystemMemory().device_free_fraction()
    assert without is not None
    assert without - with_it == pytest.approx(0.25, abs=0.01)
