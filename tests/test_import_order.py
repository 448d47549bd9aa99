"""Imports point one way, so that each layer can be read, tested and changed without those above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMESPACE = "schemafill"
ENTRY_MODULES = {f"inference.{name}" for name in ("cli", "server", "bench", "report")} | {"training.train"}
SHARED = {"inference.request", "inference.config"}

# Module or package -> what it may import besides itself; the longest matching prefix counts.
ALLOWED = {
    "inference.request": set(),
    "inference.config": {"inference.request"},
    "inference.toolcall": {"inference.request"},
    "inference.model": SHARED,
    "inference.drafting": SHARED | {"inference.toolcall", "inference.model"},
    "inference.decoding": SHARED | {"inference.toolcall", "inference.model", "inference.drafting"},
    "inference": set(),
    "inference.bench": {"inference", "data_prep.records"},
    "data_prep": {"inference"},
    "training": {"inference", "data_prep"},
}


def library_files() -> list[Path]:
    return sorted(path for top in ("inference", "data_prep", "training") for path in (ROOT / top).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imported_modules(source: str, modules: set[str]) -> list[str]:
    """Our own modules that `source` imports anywhere, in functions too; relative and top-level imports show as such."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            found.append("." * node.level + (node.module or ""))
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            # `from package import module` names the module, `from module import name` only the module.
            found += [name if name.removeprefix(f"{NAMESPACE}.") in modules else node.module for name in names]
    tops = (NAMESPACE, "inference", "data_prep", "training")
    return sorted({name for name in found if name.startswith(".") or name.split(".")[0] in tops})


def wrong_imports(module: str, source: str, modules: set[str]) -> list[str]:
    """What is wrong with the imports of `module`, one sentence each."""
    rule = max((name for name in ALLOWED if is_within(module, name)), key=len)
    wrong = []
    for name in imported_modules(source, modules):
        if not name.startswith(f"{NAMESPACE}."):
            wrong.append(f"{module} imports {name}: write `from {NAMESPACE}.…`, absolute")
            continue
        name = name.removeprefix(f"{NAMESPACE}.")
        allowed = ALLOWED[rule] | {rule}
        if not any(is_within(name, package) for package in allowed):
            wrong.append(f"{module} imports {name}: {rule} may only import {', '.join(sorted(allowed)) or 'nothing'}")
        if name in ENTRY_MODULES and module != "inference.cli":
            wrong.append(f"{module} imports the entry module {name}")
    return wrong


def concrete_drafters() -> set[str]:
    """Classes of drafting/ that propose, the contract in drafter.py aside."""
    return {
        node.name
        for path in (ROOT / "inference/drafting").glob("*.py")
        if path.name != "drafter.py"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.FunctionDef) and part.name == "propose" for part in node.body)
    }


@pytest.mark.parametrize("path", library_files(), ids=module_name)
def test_imports_point_one_way(path):
    modules = {module_name(file) for file in library_files()}
    assert wrong_imports(module_name(path), path.read_text(encoding="utf-8"), modules) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("inference.toolcall.schema", "from schemafill.inference.model.tree import DraftTree"),
        ("inference.model.tree", "def late():\n    from schemafill.inference import toolcall"),
        ("inference.drafting.drafter", "import schemafill.inference.decoding.loop"),
        ("inference.engine", "from schemafill.training.dataset import RolloutDataset"),
        ("inference.engine", "from schemafill.inference.bench import run"),
        ("inference.request", "from schemafill.inference.engine import Engine"),
        ("data_prep.rollout", "from schemafill.training import dataset"),
        ("training.dataset", "from schemafill.inference.cli import main"),
        ("inference.model.tree", "from .target import TargetModel"),
        ("inference.model.tree", "from inference.request import UserError"),
    ],
)
def test_a_wrong_import_is_seen(module, source):
    modules = {"inference.toolcall", "inference.bench", "inference.request"}
    assert len(wrong_imports(module, source, modules)) >= 1


def test_only_the_method_table_names_concrete_drafters():
    drafters = concrete_drafters()
    for path in (ROOT / "inference/decoding").glob("*.py"):
        if path.name == "methods.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not names & drafters, f"{path.name} names {names & drafters}"


def test_package_files_are_empty_but_for_the_lazy_export():
    filled = [module_name(path) for path in library_files() if path.name == "__init__.py" and path.read_text().strip()]
    assert set(filled) <= {"inference"}


def test_text_side_needs_no_tensor_library():
    """Every module of `toolcall` imports in a process that then holds neither torch nor transformers."""
    names = [f"{NAMESPACE}.{module_name(path)}" for path in (ROOT / "inference/toolcall").glob("*.py")]
    script = f"import importlib, sys; [importlib.import_module(name) for name in {names!r}]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "schemafill.inference.toolcall" in loaded
    assert not {"torch", "transformers"} & set(loaded)
