"""The GGUF file of a packaged target: downloaded by pip in data-only wheels, joined and hashed.

Knows how wheels are named, packed and fetched. It does not know what the file means.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from schemafill.inference.request import UserError

BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class PackagedTarget:
    """A GGUF file cut into parts, each part one file in one data-only wheel."""

    folder: str
    """Name of the finished folder."""
    package: str
    """Package name, `{part}` counts from 1."""
    version: str
    member: str
    """Path of the part inside its wheel."""
    part_bytes: tuple[int, ...]
    sha256: str
    """Of the parts joined in order."""

    @property
    def parts(self) -> range:
        return range(1, len(self.part_bytes) + 1)

    def requirement(self, part: int) -> str:
        return f"{self.package.format(part=part)}=={self.version}"

    def wheel_name(self, part: int) -> str:
        return f"{self.package.format(part=part).replace('-', '_')}-{self.version}-py3-none-any.whl"


def download_wheels(target: PackagedTarget, download: Path) -> None:
    """Every wheel of the target in `download`; those that are whole already are kept."""
    download.mkdir(exist_ok=True)
    with tqdm(total=sum(target.part_bytes), unit="B", unit_scale=True, desc="download") as bar:
        for part in target.parts:
            part_bytes = target.part_bytes[part - 1]
            done_bytes = bar.n
            bar.set_postfix_str(f"wheel {part} of {len(target.parts)}")
            if not is_whole_wheel(target, part, download):
                (download / target.wheel_name(part)).unlink(missing_ok=True)
                run_pip_download(target.requirement(part), download, bar, part_bytes)
                if not is_whole_wheel(target, part, download):
                    raise UserError(f"pip left no usable {target.wheel_name(part)} in {download}")
            bar.update(done_bytes + part_bytes - bar.n)


def is_whole_wheel(target: PackagedTarget, part: int, download: Path) -> bool:
    """Whether the wheel is there and lists its part at full size. The list ends the file, so a cut file has none."""
    try:
        with zipfile.ZipFile(download / target.wheel_name(part)) as wheel:
            return wheel.getinfo(target.member.format(part=part)).file_size == target.part_bytes[part - 1]
    except (OSError, zipfile.BadZipFile, KeyError):
        return False


def run_pip_download(requirement: str, download: Path, bar: tqdm, most_bytes: int) -> None:
    """Let pip fetch one wheel, without installing it; the bar follows the bytes that arrive, `most_bytes` at most."""
    scratch = download / "pip"  # pip's temporary files on our own disk: /tmp may be small, and we can watch them grow
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", "download"]
    command += ["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(download), requirement]
    log_path = scratch / "log"
    start = bar.n
    with log_path.open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                bar.update(max(0, start + min(count_bytes(scratch), most_bytes) - bar.n))
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    shutil.rmtree(scratch, ignore_errors=True)
    if process.returncode != 0:
        raise UserError(f"cannot download {requirement}: {describe_pip_fault(lines)}")


def count_bytes(folder: Path) -> int:
    """Bytes of the wheels under `folder`, where another process makes and removes files and folders meanwhile."""
    num_bytes = 0
    for place, _, names in os.walk(folder):  # passes over a folder that vanished
        for name in names:
            with suppress(FileNotFoundError):
                num_bytes += os.path.getsize(os.path.join(place, name)) if name.endswith(".whl") else 0
    return num_bytes


def describe_pip_fault(lines: list[str]) -> str:
    """The last thing pip said that names the cause: a broken connection is only a warning to it, the errors follow."""
    broken = [match[1] for line in lines if (match := re.search(r"connection broken by '(.*)'", line))]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    last = (errors or lines or ["no output"])[-1]
    if broken:
        cause = re.sub(r"^\w+\(.*?>: |^\w+\(|\)$", "", broken[-1])  # `Error(<object at 0x..>: cause)` -> `cause`
        return f"the package registry cannot be reached (pip: {cause})"
    if any("(from versions: none)" in line for line in lines):
        return f"the package registry cannot be reached or does not offer it (pip: {last})"
    return f"pip: {last}"


def join_wheels(target: PackagedTarget, download: Path, joined: Path) -> None:
    """Write the parts one after the other to `joined`, hashing on the way."""
    digest = hashlib.sha256()
    num_bytes = sum(target.part_bytes)
    with joined.open("wb") as out, tqdm(total=num_bytes, unit="B", unit_scale=True, desc="join, hash") as bar:
        for part in target.parts:
            path = download / target.wheel_name(part)
            try:
                with zipfile.ZipFile(path) as wheel, wheel.open(target.member.format(part=part)) as member:
                    while block := member.read(BLOCK_BYTES):
                        digest.update(block)
                        out.write(block)
                        bar.update(len(block))
            except (zipfile.BadZipFile, zlib.error) as fault:
                path.unlink()
                raise UserError(f"{path.name} is damaged ({fault}); it was removed, run the command again") from fault
    if digest.hexdigest() != target.sha256:
        for part in target.parts:
            (download / target.wheel_name(part)).unlink()  # kept, they would fail the same way every time
    check_hash(joined, digest.hexdigest(), target.sha256)


def hash_file(path: Path, label: str) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file, tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=label) as bar:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            bar.update(len(block))
    return digest.hexdigest()


def check_hash(path: Path, got: str, expected: str) -> None:
    if got != expected:
        raise UserError(f"{path} is not the expected file: sha256 {expected} expected, got {got}")
