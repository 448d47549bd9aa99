"""The stored latency curve: kept, and measured again when what is stored cannot be one."""

import json
import math

import pytest

from schemafill.inference.model import latency
from schemafill.inference.model.latency import LatencyCurve, calibrate

CURVE = LatencyCurve((1, 4, 8), (1.0, 1.5, 2.0), 0.1, 0.0)


@pytest.fixture
def store(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(latency, "_cache_path", lambda target: tmp_path / "latency" / "curve.json")
    monkeypatch.setattr(latency, "_measure", lambda target: measured.append(1) or CURVE)
    return tmp_path / "latency" / "curve.json", measured


def test_measured_once_and_kept(store):
    path, measured = store
    assert calibrate(None) == calibrate(None) == CURVE
    assert len(measured) == 1 and path.is_file() and len(list(path.parent.iterdir())) == 1


@pytest.mark.parametrize(
    "stored",
    ["[]", "null", "{", "[" * 100_000, {"rows": 3}, {"rows": []}, {"seconds": [1.0]}, {"seconds": ["a", "b", "c"]},
     {"seconds": [1.0, 0.0, 2.0]}, {"noise": None}, {"noise": math.nan}, {"prompt_row_s": -1.0}, {"rows": [4, 1, 8]}],
    ids=str,
)  # fmt: skip
def test_what_is_no_curve_is_measured_again(store, stored):
    path, measured = store
    whole = {"rows": [1, 4, 8], "seconds": [1.0, 1.5, 2.0], "prompt_row_s": 0.1, "noise": 0.0}
    path.parent.mkdir()
    path.write_text(stored if isinstance(stored, str) else json.dumps(whole | stored))
    assert calibrate(None) == CURVE
    assert measured


def test_a_home_that_cannot_be_written_is_only_a_warning(store, monkeypatch, caplog):
    path, _ = store
    path.parent.write_text("a file where the folder should be")
    assert calibrate(None) == CURVE
    assert "measured at every start" in caplog.text


def test_between_measured_rows_the_curve_is_straight():
    assert CURVE(1) == 1.0 and CURVE(6) == 1.75 and CURVE(16) == 4.0
