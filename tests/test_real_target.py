"""The embedded target itself: every method writes the ids that plain decoding writes, and the calls make sense."""

import pytest

from schemafill.inference.decoding.methods import METHODS
from schemafill.inference.engine import Engine
from schemafill.inference.request import SamplingParams
from schemafill.inference.suites import load_suite

pytestmark = pytest.mark.real

REQUESTS = ("weather-three-cities", "loans-compare", "alarms-no-arguments")
OTHERS = [name for name, method in METHODS.items() if name != "ar" and method.lossless]


@pytest.fixture(scope="module")
def engine():
    return Engine.from_pretrained("embedded", progress=False)


@pytest.fixture(scope="module")
def items():
    found = {item.id: item for item in load_suite("demo")}
    return [found[name] for name in REQUESTS]


@pytest.fixture(scope="module")
def plain(engine, items):
    params = SamplingParams(max_new_tokens=130)
    return [engine.generate(messages=i.messages, tools=i.tools, method="ar", sampling=params) for i in items]


@pytest.mark.parametrize("method", OTHERS)
def test_ids_equal_plain_decoding(engine, items, plain, method):
    params = SamplingParams(max_new_tokens=130)
    for item, expected in zip(items, plain, strict=True):
        done = engine.generate(messages=item.messages, tools=item.tools, method=method, sampling=params)
        assert done.token_ids == expected.token_ids
        assert done.tool_calls and [c.arguments for c in done.tool_calls] == [c.arguments for c in expected.tool_calls]
        assert done.finish_reason == expected.finish_reason


def test_calls_answer_the_request(plain):
    assert [call.name for call in plain[0].tool_calls] == ["get_weather"] * 3 or len(plain[0].tool_calls) == 3
    assert plain[1].tool_calls[0].name == "calculate_loan"


def test_drafting_saves_passes(engine, items, plain):
    done = engine.generate(messages=items[0].messages, tools=items[0].tools)
    assert done.stats.verify_calls * 3 < plain[0].stats.verify_calls
    assert sum(done.stats.accepted_by_source.values()) == done.stats.tokens == len(done.token_ids)


def test_a_seed_gives_the_same_text_with_and_without_drafts(engine, items):
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=7, max_new_tokens=40)
    item = items[0]
    texts = {
        method: engine.generate(messages=item.messages, tools=item.tools, method=method, sampling=params).token_ids
        for method in ("ar", "schemafill")
    }
    assert texts["ar"] == texts["schemafill"]


def test_stream_joins_to_the_whole_answer(engine, items, plain):
    *deltas, done = engine.stream(
        messages=items[2].messages, tools=items[2].tools, sampling=SamplingParams(max_new_tokens=130)
    )
    assert done.token_ids == plain[2].token_ids
    joined = {}
    for delta in deltas:
        if delta.kind == "arguments":
            joined[delta.call_idx] = joined.get(delta.call_idx, "") + delta.text
    assert [joined[i] for i in range(len(done.tool_calls))] == [call.arguments for call in done.tool_calls]
