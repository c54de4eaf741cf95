"""The floor plan, checked: who imports whom, what the core may touch, how long things may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "freezethaw"

# Every module, from the ground up: it may import what stands before it, and nothing else of ours.
# A new module takes its place here, and in the picture in CONTRIBUTING.md.
FLOORS = {
    "core": """
        errors records seeds wording units sentences
        parameters space scale cost utility stopping
        preference questions
        candidates extrapolator acquisition events policy problems
        """,
    "tables and network": """
        tables
        pfn.model pfn.prior pfn.episodes pfn.weights pfn.extrapolate pfn.training pfn.heldout pfn
        """,
    "shells": """
        isolation memory checkpoints trial trials executors
        storage told
        prefer.file prefer.trajectory study
        report.view report.svg report.words report.plot report.charts report.text report.page report
        live views loop
        config demo
        prefer.words prefer.session prefer.screen prefer.server prefer.command prefer
        bench.overhead bench.replay bench.preference bench.preference_figures bench cli __main__
        """,
}
CORE, NETWORK, SHELLS = (names.split() for names in FLOORS.values())
ORDER = [*CORE, *NETWORK, *SHELLS]

CORE_LIBRARIES = {"numpy", "scipy", "torch"}
PURE = """
    __future__ abc bisect collections contextlib copy dataclasses difflib enum fractions functools
    graphlib hashlib heapq inspect itertools json math numbers operator re statistics string types
    typing
    """
PURE_STANDARD_LIBRARY = set(PURE.split())
# What a module needs beyond that, and why it is no harm.
ALSO_PURE = {
    "records": {"pathlib"},  # the type of a field; opening one is refused below
    "parameters": {"sys"},  # sys.float_info
}

MOST_LINES = 750
"""Of a file: one sitting."""
MOST_LINES_OF_CODE = 60
"""Of a function, docstring apart: one screen."""

MAY_PRINT = {"cli", "demo", "bench.overhead", "pfn.training", "pfn.heldout"}


def module_name(path: Path) -> str:
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
MODULES = [name for name in FILES if name]  # without the package itself, which is lazy


@cache
def tree(module: str) -> ast.Module:
    """The module's code without its `if TYPE_CHECKING:` blocks."""
    parsed = ast.parse(FILES[module].read_text(encoding="utf-8"))
    for node in ast.walk(parsed):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                kept = [each for each in block if not _is_type_checking(each)]
                setattr(node, name, kept or [ast.Pass()])
    return parsed


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def imports(module: str) -> Iterator[tuple[str, int]]:
    """Dotted names, also those inside functions, with their lines."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                inside = whole.removeprefix("freezethaw.")
                yield (whole if inside in FILES else node.module), node.lineno


def our_imports(module: str) -> Iterator[tuple[str, int]]:
    for name, line in imports(module):
        if name == "freezethaw" or name.startswith("freezethaw."):
            yield name.removeprefix("freezethaw").removeprefix("."), line


# ── direction ────────────────────────────────────────────────────────────────────────────────────


def test_every_module_has_its_place():
    assert sorted(ORDER) == sorted(MODULES)
    assert len(set(ORDER)) == len(ORDER)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    """A total order leaves no room for cycles."""
    below = ORDER[: ORDER.index(module)]
    wrong = [f"line {line}: {name or 'freezethaw'}" for name, line in our_imports(module)
             if name not in below]  # fmt: skip
    assert not wrong, f"{module} may import only what stands before it in ORDER"


def test_the_check_sees_lazy_and_plain_imports():
    assert "pfn.extrapolate" in dict(our_imports("study"))
    assert "records" in dict(our_imports("policy"))
    assert "pandas" not in dict(imports("policy"))


def test_the_floor_plan_is_drawn():
    """CONTRIBUTING.md shows every module."""
    picture = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for module in MODULES:
        assert re.search(rf"(?<!\w){re.escape(module.split('.')[-1])}\b", picture), module


# ── what the core may touch ──────────────────────────────────────────────────────────────────────

FORBIDDEN_CALLS = {
    "open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint", "Path",
    "np.load", "np.save", "np.savez", "np.loadtxt", "np.fromfile", "np.memmap",
    "torch.load", "torch.save", "torch.seed", "torch.manual_seed", "torch.initial_seed",
    "torch.device", "torch.rand_like", "torch.randn_like", "torch.randint_like",
}  # fmt: skip
FORBIDDEN_PREFIXES = (
    "torch.cuda", "torch.mps", "torch.backends", "torch.random", "torch.set_", "torch.get_default",
    "np.random.", "sys.std", "sys.argv", "sys.modules", "sys.path",
)  # fmt: skip
ALLOWED = {"np.random.default_rng", "np.random.Generator"}
DRAWS = {
    "torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.multinomial",
    "torch.bernoulli", "torch.normal",
}  # fmt: skip
METHODS = {"cuda", "read_text", "write_text", "read_bytes", "write_bytes", "mkdir", "unlink"}


def breaches(code: ast.Module) -> Iterator[str]:
    """What in a core module touches the world, in words."""
    for node in ast.walk(code):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.startswith(FORBIDDEN_PREFIXES) and name not in ALLOWED:
                yield f"line {node.lineno}: {name}"
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {keyword.arg for keyword in node.keywords}
            if name in FORBIDDEN_CALLS:
                yield f"line {node.lineno}: {name}(…)"
            if name in DRAWS and "generator" not in given:
                yield f"line {node.lineno}: {name}(…) without generator="
            if name == "np.random.default_rng" and not node.args:
                yield f"line {node.lineno}: {name}() without a seed"
            if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                yield f"line {node.lineno}: .{node.func.attr}(…)"


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_only_what_is_pure(module):
    allowed = PURE_STANDARD_LIBRARY | CORE_LIBRARIES | ALSO_PURE.get(module, set())
    others = {name.partition(".")[0] for name, _ in imports(module)} - {"freezethaw"}
    assert others <= allowed


@pytest.mark.parametrize("module", CORE)
def test_the_core_touches_no_file_clock_device_or_global_random_state(module):
    assert not list(breaches(tree(module)))


@pytest.mark.parametrize(
    "line",
    [
        "open('x')",
        "Path('x')",
        "path.read_text()",
        "np.random.seed(0)",
        "np.random.normal()",
        "np.random.default_rng()",
        "torch.manual_seed(0)",
        "torch.rand(3)",
        "torch.multinomial(mass, 3)",
        "tensor.cuda()",
        "torch.cuda.is_available()",
        "torch.set_num_threads(1)",
        "print('x')",
        "sys.stdout.write('x')",
    ],
)
def test_the_check_sees_what_touches_the_world(line):
    assert list(breaches(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    ["np.random.default_rng(seed)", "torch.rand(3, generator=g)", "tensor.cpu()", "sys.float_info"],
)
def test_the_check_lets_pass_what_does_not(line):
    assert not list(breaches(ast.parse(line)))


# ── what is loaded when ──────────────────────────────────────────────────────────────────────────


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def beyond_the_four() -> list[str]:
    """Import names of all that pyproject.toml asks for beyond torch, numpy, scipy, safetensors."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.match(r"[\w-]+", each)[0].lower() for each in wanted}
    names -= {"torch", "numpy", "scipy", "safetensors", "freezethaw"}
    return sorted({"scikit-learn": "sklearn"}.get(name, name) for name in names)


def test_core_and_network_import_with_four_libraries_alone():
    """That is what a GPU machine without network has."""
    blocked = beyond_the_four()
    assert {"sqlalchemy", "typer", "rich", "pandas", "sklearn"} <= set(blocked)
    run_python(f"""
        import importlib, sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {blocked}:
                    raise ImportError(f"{{name}} is not to be had here")

        sys.meta_path.insert(0, Blocker())
        for name in {[*CORE, *NETWORK]}:
            importlib.import_module("freezethaw." + name)
    """)


def test_importing_the_package_is_quick_and_loads_nothing_heavy():
    code = """
        import sys, time
        before = set(sys.modules)
        began = time.perf_counter()
        import freezethaw
        seconds = time.perf_counter() - began
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(seconds, *loaded)
    """
    runs = [run_python(code).split() for _ in range(3)]
    assert "freezethaw" in runs[0]
    heavy = {"torch", "numpy", "scipy", "sqlalchemy", "rich", "typer"}
    assert not heavy & set(runs[0])
    assert min(float(seconds) for seconds, *_ in runs) < 0.3


def test_tuning_loads_the_network_only_when_it_decides():
    loaded = run_python("""
        import sys
        import freezethaw.loop
        print("\\n".join(sys.modules))
    """).split()
    assert not [name for name in loaded if name.startswith("freezethaw.pfn")]
    assert "freezethaw.study" in loaded


# ── habits ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("module", FILES)
def test_files_can_be_read_in_a_sitting(module):
    assert len(FILES[module].read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("module", FILES)
def test_functions_fit_a_screen(module):
    long = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1
            if lines > MOST_LINES_OF_CODE:
                long[node.name] = lines
    assert not long


def calls(module: str, wanted: Callable[[str], bool]) -> list[ast.Call]:
    found = (node for node in ast.walk(tree(module)) if isinstance(node, ast.Call))
    return [node for node in found if wanted(ast.unparse(node.func))]


def keyword_is(call: ast.Call, name: str, value: bool) -> bool:
    return any(
        keyword.arg == name
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is value
        for keyword in call.keywords
    )


@pytest.mark.parametrize("module", FILES)
def test_nothing_is_unpickled(module):
    """A file from someone else must not be able to run code."""
    picklers = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert not picklers & {name.partition(".")[0] for name, _ in imports(module)}
    if module != "demo":  # reads only what it wrote itself, as its readers will
        loads = calls(module, lambda name: name == "torch.load")
        assert all(keyword_is(call, "weights_only", True) for call in loads)
    arrays = calls(module, lambda name: name in ("np.load", "numpy.load"))
    assert all(keyword_is(call, "allow_pickle", False) for call in arrays)


@pytest.mark.parametrize("module", sorted(set(FILES) - MAY_PRINT))
def test_libraries_do_not_print(module):
    assert not calls(module, lambda name: name == "print")
