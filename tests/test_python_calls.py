import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemafill.data_prep.readers.python_calls import PythonCall, parse_call


def keywords(text: str) -> dict:
    return parse_call(f"f({text})").keywords


def test_keyword_arguments_keep_their_order() -> None:
    call = parse_call("  weather(city='Oslo', days=3,unit = None)\n")
    assert call == PythonCall("weather", (), {"city": "Oslo", "days": 3, "unit": None})
    assert list(call.keywords) == ["city", "days", "unit"]


def test_call_without_arguments() -> None:
    assert parse_call("view_all()") == PythonCall("view_all", (), {})


@pytest.mark.parametrize("text", ["a.b.c(x=1)", "a . b\t.c(x=1)"])
def test_dotted_name_stays_whole(text: str) -> None:
    assert parse_call(text).name == "a.b.c"


def test_names_are_not_folded_to_compatible_letters() -> None:
    call = parse_call("\u00b5.set(\u00b5=1, ﬁrst=2)")
    assert call.name == "\u00b5.set"
    assert list(call.keywords) == ["\u00b5", "ﬁrst"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1.0", 1.0), ("-3", -3), ("-0.5", -0.5), ("+2", 2), ("1_000", 1000), ("0x10", 16), ("1e3", 1000.0),
        ("True", True), ("None", None), ("'a' 'b'", "ab"), (r"'\u00e5'", "å"), (r"'\d'", r"\d"),
        ("'a=1, b(2)'", "a=1, b(2)"),
        ("(45.76, -4.85)", [45.76, -4.85]), ("(1,)", [1]), ("()", []), ("[[1, 2], (3, [4])]", [[1, 2], [3, [4]]]),
        ("{'a': {'b': (1, -2)}, 'c': []}", {"a": {"b": [1, -2]}, "c": []}),
    ],
)  # fmt: skip
def test_literal_becomes_its_json_value(text: str, value: object) -> None:
    found = keywords(f"x={text}")["x"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "1 / 6", "500*500", "true", "null", "-True", "-(1)**2", "b'x'", "2j", "1e999", "-1e999", "...",
        "{1, 2}", "{1: 2}",
        "{**base}", "[*base]", "f'{a}'", "lambda n: n", "now(3)", "a.b", "[n for n in x]", "not True",
    ],
)  # fmt: skip
def test_what_is_no_literal_keeps_its_text(text: str) -> None:
    assert keywords(f"a=1, x={text}, b=2") == {"a": 1, "x": text, "b": 2}


def test_expression_inside_a_list_keeps_its_text_there() -> None:
    assert keywords("x=[1, 2 * 3, {'å': 1/6}]") == {"x": [1, "2 * 3", {"å": "1/6"}]}


def test_nothing_is_evaluated(tmp_path) -> None:
    path = tmp_path / "made"
    text = f"open({str(path)!r}, 'w')"
    assert keywords(f"x={text}") == {"x": text}
    assert parse_call(text).positional == (str(path), "w")
    assert not path.exists()


def test_positional_argument_takes_the_parameter_name_at_its_place() -> None:
    call = parse_call("sort([3, 1], 'down', stable=True)")
    assert call.arguments(["items", "order", "stable"]) == {"items": [3, 1], "order": "down", "stable": True}
    assert list(call.arguments(["items", "order", "stable"])) == ["items", "order", "stable"]


def test_keyword_outside_the_parameters_is_kept() -> None:
    assert parse_call("f(1, other=2)").arguments(["a"]) == {"a": 1, "other": 2}


@pytest.mark.parametrize(
    ("text", "parameters", "complaint"),
    [
        ("f(1, 2)", ["a"], "2 positional arguments for 1"),
        ("f(1, a=2)", ["a", "b"], "'a' is given by place and by name"),
    ],
)
def test_positional_argument_without_a_place_is_refused(text: str, parameters: list, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_call(text).arguments(parameters)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("f(a=1", "not an expression"), ("", "not an expression"), ("f(a=1); g()", "not an expression"),
        ("f", "not a call"),
        ("f(a=1), g(b=2)", "not a call"), ("[f(a=1)]", "not a call"), ("f()(a=1)", "not a name"),
        ("'f'.g(a=1)", "not a name"),
        ("f(a=1, a=2)", "given twice"), ("f(*x)", "out of a list"), ("f(**x)", "out of a dict"),
        ("f(\0)", "not an expression"),
        ("f(" * 5000, "not an expression"), ("f('\ud800')", "not an expression"), ("x = f(a=1)", "not an expression"),
    ],
)  # fmt: skip
def test_what_is_not_one_call_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_call(text)


def test_unknown_escape_warns_nobody(recwarn) -> None:
    keywords(r"x='\d'")
    assert not recwarn.list


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,6}_", fullmatch=True), LITERALS, max_size=4))
def test_what_python_prints_is_read_back(arguments: dict) -> None:
    found = keywords(", ".join(f"{name}={value!r}" for name, value in arguments.items()))
    assert json.dumps(found) == json.dumps(arguments)
