"""Figures of a summary against published and hand-made values."""

import math

import pytest

from schemafill.inference.figures import quantile, ratio, wilson_low


def test_wilson_interval_has_the_published_values() -> None:
    assert wilson_low(650, 650) == pytest.approx(0.9941, abs=5e-5)
    assert wilson_low(450, 450) == pytest.approx(0.9915, abs=5e-5)
    assert wilson_low(81, 263) == pytest.approx(0.2553, abs=5e-5)  # Newcombe 1998, table I, method 3
    assert wilson_low(0, 20) == 0.0
    assert wilson_low(0, 0) is None


def test_quantiles_lie_between_order_statistics() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.9) == 3.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert math.isclose(quantile([0.0, 10.0], 0.9), 9.0)


def test_ratio_of_nothing_is_no_number() -> None:
    assert [ratio(1, 0), ratio(None, 2), ratio(1, None), ratio(0, 2)] == [None, None, None, 0.0]
