"""What an install gets: every package and data file, pinned versions that fit, no dependency forgotten."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DATA_PACKAGE = "schemafill.configs"
"""Holds no Python. The wheel carries only its targets: what is known about them is read at run time."""
PACKAGES = [package for package in PROJECT["tool"]["setuptools"]["packages"] if package != DATA_PACKAGE]
EXTRAS = PROJECT["project"]["optional-dependencies"]
NOT_PACKAGES = {"tests", "runs", "build", "dist", "data", "checkpoints"}
DISTRIBUTIONS = {"yaml": "pyyaml", "rank_bm25": "rank-bm25", "prometheus_client": "prometheus-client"}
"""Import names that differ from the name under which the library is installed."""


def folders_with_python() -> set[str]:
    """`schemafill.<folder>` for every folder of the repository that holds Python files, tests aside."""
    found = set()
    for top in ROOT.iterdir():
        if top.is_dir() and not top.name.startswith(".") and top.name not in NOT_PACKAGES:
            found |= {path.parent.relative_to(ROOT) for path in top.rglob("*.py")}
    return {".".join(("schemafill", *folder.parts)) for folder in found}


def folder_of(package: str) -> Path:
    return ROOT.joinpath(*package.split(".")[1:])


def test_package_list_equals_the_folders_on_disk():
    assert sorted(PACKAGES) == sorted(folders_with_python())


def test_every_package_is_marked_as_one():
    assert [package for package in PACKAGES if not (folder_of(package) / "__init__.py").exists()] == []


def test_wheel_holds_every_file_below_the_packages_and_the_facts_of_targets(tmp_path):
    """Built from a copy: a build in place leaves a `build` folder whose stale files would enter the next wheel."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    tops = {package.split(".")[1] for package in PACKAGES}
    for top in {*tops, "configs"}:
        shutil.copytree(ROOT / top, source / top, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True, capture_output=True)

    (wheel,) = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {file for top in {*tops, "configs/targets"} for file in (source / top).rglob("*") if file.is_file()}
    assert shipped == {f"schemafill/{file.relative_to(source)}" for file in files}


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


@pytest.mark.parametrize("name", ["lock.txt", "dev.txt"])
def test_requirements_are_plain_pins(name):
    """No index, no path, and no `+cpu`: a pin with a local version is found in one place only."""
    lines = [line for line in (ROOT / "requirements" / name).read_text().splitlines() if not line.startswith("#")]
    assert lines and [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)] == []


def test_lock_pins_every_dependency_within_its_range():
    locked, tools = pins(ROOT / "requirements/lock.txt"), pins(ROOT / "requirements/dev.txt")
    assert not locked.keys() & tools.keys()
    for text in PROJECT["project"]["dependencies"] + EXTRAS["dev"]:
        requirement = Requirement(text)
        version = (locked | tools).get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not pinned"
        assert requirement.specifier.contains(version), f"{version} is outside {requirement}"


def test_every_library_that_is_imported_is_declared():
    """Else it is there only as long as some other library happens to bring it."""
    declared = {
        canonicalize_name(Requirement(text).name)
        for text in sum(EXTRAS.values(), PROJECT["project"]["dependencies"])
    }
    for package in PACKAGES:
        for path in folder_of(package).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
                for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"schemafill"}:
                    library = canonicalize_name(DISTRIBUTIONS.get(top, top))
                    assert library in declared, f"{path.relative_to(ROOT)} imports {top}"


def test_command_leads_to_the_command_line():
    assert PROJECT["project"]["scripts"] == {"schemafill": "schemafill.inference.cli:main"}
    names = {node.name for node in ast.parse((ROOT / "inference/cli.py").read_text()).body if hasattr(node, "name")}
    assert "main" in names
