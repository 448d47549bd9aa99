from dataclasses import replace

from schemafill.data_prep.dev_groups import SMALL_SHARE, Sides, choose_sides, draw, requests_in_train
from schemafill.data_prep.records import Record


def record(group: str, *tools: str, id_: str = "") -> Record:
    made = [{"type": "function", "function": {"name": name, "description": "", "parameters": {}}} for name in tools]
    messages = [{"role": "user", "content": "x"}]
    return Record(id=id_ or f"{group}/{tools}", source="s", messages=messages, tools=made, group=group)


def own_tools(num_groups: int, start: int = 0) -> list[Record]:
    """Two records a group, no tool in two groups."""
    return [record(f"g{at}", f"t{at}", id_=f"{at}/{k}") for at in range(start, start + num_groups) for k in (1, 2)]


def groups(records: list[Record], numbers: list[int]) -> set[str]:
    return {records[number].group for number in numbers}


def test_no_group_and_no_tool_is_on_both_sides() -> None:
    records = own_tools(200) + [record(f"h{at}", "common", f"u{at}") for at in range(100)]
    sides = choose_sides(records, dev_share=0.2, seed=1)
    assert sorted(sides.train + sides.dev + sides.dropped) == list(range(len(records)))
    assert not groups(records, sides.train) & groups(records, sides.dev)
    tools = [{tool["function"]["name"] for number in side for tool in records[number].tools}
             for side in (sides.train, sides.dev)]  # fmt: skip
    assert not tools[0] & tools[1]
    assert 0.1 < len(groups(records, sides.dev) - {f"h{at}" for at in range(100)}) / 200 < 0.3
    assert groups(records, sides.dropped) <= {f"h{at}" for at in range(100)}
    assert sides.dropped


def test_groups_that_share_a_tool_stay_together_where_they_are_few() -> None:
    records = own_tools(300) + [record(f"p{at}", f"pair{at // 2}") for at in range(200)]
    sides = choose_sides(records, dev_share=0.3, seed=0)
    assert sides.dropped == []
    dev = groups(records, sides.dev)
    assert all((f"p{at}" in dev) == (f"p{at + 1}" in dev) for at in range(0, 200, 2))
    assert any(f"p{at}" in dev for at in range(200))


def test_a_chain_of_shared_tools_is_one_set() -> None:
    chain = [record(f"c{at}", f"t{at}", f"t{at + 1}") for at in range(5)]
    records = own_tools(150, start=1000) + chain
    for seed in range(20):
        sides = choose_sides(records, dev_share=0.5, seed=seed)
        assert len(chain) <= SMALL_SHARE * len(records)
        assert sides.dropped == []
        assert len({name in groups(records, sides.dev) for name in (f"c{at}" for at in range(5))}) == 1


def test_further_records_move_no_other() -> None:
    few, many = own_tools(150), own_tools(150) + own_tools(100, start=500) + [record("g3", "t3", id_="more")]
    before, after = (choose_sides(records, dev_share=0.1, seed=5) for records in (few, many))
    assert groups(few, before.dev) == groups(many, after.dev) & {one.group for one in few}
    assert groups(few, before.dev)


def test_the_seed_decides() -> None:
    records = own_tools(200)
    first, again, other = (choose_sides(records, dev_share=0.1, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.dev != other.dev


def test_dev_is_not_empty_where_a_group_with_tools_of_its_own_exists() -> None:
    records = [record(f"h{at}", "common") for at in range(40)] + [record("own", "t"), record("own2", "u")]
    for seed in range(30):
        sides = choose_sides(records, dev_share=0.02, seed=seed)
        assert groups(records, sides.dev) <= {"own", "own2"}
        assert sides.dev and sides.train


def test_dev_is_empty_where_all_share_one_tool() -> None:
    records = [record(f"h{at}", "common") for at in range(60)]
    sides = choose_sides(records, dev_share=0.3, seed=0)
    assert sides.dev == []
    assert sides.train and sides.dropped
    assert choose_sides([record("only", "t")], dev_share=0.3, seed=0).train == [0]


def test_a_dev_record_whose_request_trains_with_other_tools_is_found() -> None:
    def asks(*texts: str) -> Record:
        messages = [{"role": "user", "content": text} for text in texts]
        return replace(record("g", "t"), messages=messages)

    long = "Find me a table for two in the old town"
    train = [asks("Play  a song"), asks(long), asks("yes", "no")]
    dev = [asks("play a\nSONG"), asks("Hello", long.upper()), asks("Play another song"), asks("yes"), asks("no", "yes")]
    sides = Sides(train=[0, 1, 2], dev=[3, 4, 5, 6, 7], dropped=[])
    assert requests_in_train([*train, *dev], sides) == [3, 4]


def test_draws_are_even_and_depend_on_every_name() -> None:
    drawn = [draw("0", f"g{at}") for at in range(2000)]
    assert 0.08 < sum(number < 0.1 for number in drawn) / 2000 < 0.12
    assert draw("0", "g") != draw("1", "g") and draw("a", "b") != draw("ab")
