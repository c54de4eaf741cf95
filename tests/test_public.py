"""What `import freezethaw as ft` offers: complete, sorted, documented, and in sync with itself."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
from pathlib import Path

import pytest

import freezethaw as ft

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_names_are_sorted_and_few():
    assert ft.__all__ == sorted(set(ft.__all__))
    assert len(ft.__all__) <= 25


def test_dir_shows_what_there_is():
    assert dir(ft) == ft.__all__


@pytest.mark.parametrize("name", ft.__all__)
def test_every_name_can_be_imported_and_is_documented(name):
    value = getattr(ft, name)
    assert value.__doc__
    if inspect.isclass(value):
        for part, member in vars(value).items():
            if not part.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{part}"


def test_names_come_from_where_the_package_says():
    homes = {name: home for home, names in ft._HOMES.items() for name in names}
    assert sorted([*homes, *ft._MODULES]) == ft.__all__
    for name, home in homes.items():
        module = importlib.import_module(f"freezethaw.{home}")
        assert getattr(ft, name) is getattr(module, name)
    for name in ft._MODULES:
        assert isinstance(getattr(ft, name), types.ModuleType)


def test_no_function_has_the_name_of_a_module():
    """Importing the module would put it where the function is expected."""
    folder = Path(ft.__file__).parent
    modules = {path.stem for path in folder.iterdir() if not path.name.startswith("_")}
    assert modules & set(ft.__all__) == set(ft._MODULES)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(ft.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        seen |= {alias.name: node.module for alias in node.names}
    assert sorted(seen) == ft.__all__
    for name, module in seen.items():
        # A class may be defined elsewhere than where it is taken from, but the two must agree.
        assert getattr(importlib.import_module(module), name, getattr(ft, name)) is getattr(
            ft, name
        )


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tunee'"):
        _ = ft.tunee


def documented_arguments(function) -> list[str]:
    text = inspect.getdoc(function) or ""
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    return re.findall(r"^ {4}(\w+):", arguments, flags=re.MULTILINE)


def test_every_parameter_of_tune_is_documented_in_order():
    assert documented_arguments(ft.tune) == list(inspect.signature(ft.tune).parameters)


def test_create_takes_what_tune_takes():
    """Whoever turns a `tune` into ask and tell keeps their keywords."""
    tune = inspect.signature(ft.tune).parameters
    create = inspect.signature(ft.Study.create).parameters
    shared = create.keys() - {"engine"}
    assert shared <= tune.keys()
    assert {name: create[name].default for name in shared} == {
        name: tune[name].default for name in shared
    }


def test_functions_take_keywords_where_order_would_be_a_riddle():
    for name in ("linear", "quadratic", "square_root", "power"):
        kinds = {p.kind for p in inspect.signature(getattr(ft, name)).parameters.values()}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_pages_name_every_public_name_and_no_other():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"\bft\.(\w+)", text))
    assert named == set(ft.__all__)
