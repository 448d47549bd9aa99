from random import Random

from test_augment import rows

from schemafill.data_prep.distractors import DistractorPool
from schemafill.data_prep.records import record_of
from schemafill.data_prep.tool_definitions import tool_name


def test_draws_from_the_pool_follow_content_and_not_the_order_of_the_file() -> None:
    originals = [record_of(one) for one in rows(20)]
    pools = [DistractorPool(ones) for ones in (originals, originals[::-1], originals + originals[:3])]
    for seed in range(30):
        assert len({tool_name(pool.draw(Random(seed), ["stop"])) for pool in pools}) == 1
    assert len({tool_name(pools[0].draw(Random(seed), [])) for seed in range(30)}) > 10
    assert all(tool_name(pools[0].draw(Random(seed), ["stop"])) != "stop" for seed in range(30))


def test_a_further_tool_changes_few_draws() -> None:
    originals = [record_of(one) for one in rows(50)]
    before, after = DistractorPool(originals[:-1]), DistractorPool(originals)
    same = sum(before.draw(Random(seed), []) == after.draw(Random(seed), []) for seed in range(200))
    assert 180 < same < 200
