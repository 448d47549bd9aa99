"""In which order a benchmark run decodes its requests with its methods, so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schemafill.inference.bench_config import BenchConfig
from schemafill.inference.suites import SuiteItem


@dataclass(frozen=True)
class Group:
    """One request in one repeat, with its methods in the order in which they run."""

    item: SuiteItem
    repeat: int
    methods: tuple[str, ...]

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        return [(self.item.id, method, self.repeat) for method in self.methods]


def plan_groups(config: BenchConfig, items: list[SuiteItem]) -> Iterator[Group]:
    """Every request of every repeat, in the order in which they run."""
    orders = balanced_orders(config.methods)
    for repeat_idx in range(config.repeat):
        for item_idx, item in enumerate(items):
            turn = repeat_idx * (len(items) + 1) + item_idx  # + 1: repeats of a request differ in order as well
            yield Group(item, repeat_idx, orders[turn % len(orders)])


def balanced_orders(methods: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Orders in which each method stands equally often in each place and directly behind each other method.

    Williams 1949: a zigzag 0, 1, n-1, 2, n-2, ... shifted by every amount; for odd n also each of them reversed.
    """
    n = len(methods)
    zigzag = [(place + 1) // 2 if place % 2 else (n - place // 2) % n for place in range(n)]
    orders = [tuple(methods[(idx + shift) % n] for idx in zigzag) for shift in range(n)]
    return orders + [order[::-1] for order in orders] if n % 2 and n > 1 else orders
