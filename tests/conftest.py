"""Markers only: `real` tests need the embedded target, `gpu` tests a GPU. Fixtures live beside their tests."""

import os

import pytest

from schemafill.inference.fetch import is_complete, target_folder


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("real") and not is_complete(target_folder("embedded")):
        reason = f"the embedded target is not in {target_folder('embedded')} (make fetch)"
        if os.environ.get("SCHEMAFILL_REQUIRE_TARGET") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    if item.get_closest_marker("gpu"):
        import torch  # most runs hold no gpu test and need not wait for it

        if not torch.cuda.is_available():
            pytest.skip("no GPU")
