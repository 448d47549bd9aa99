"""Names of the next call: what a name that is begun goes on to be."""

import pytest

from schemafill.inference.drafting.tool_choice import ToolChooser
from schemafill.inference.toolcall.schema import parse_tools


@pytest.mark.parametrize(
    ("begun", "is_whole", "expected"),
    [
        ("harbour.", False, None),
        ("harbour.get_target", True, None),
        ("get", False, "get_target"),
        ("target", False, "target"),
        ("get", True, "get"),
        ("dock", False, "dock"),
    ],
)
def test_a_name_that_is_no_tools_becomes_the_part_that_begins_so(begun, is_whole, expected):
    """The part was once cut where its beginning stood last, inside `target`."""
    chooser = ToolChooser(parse_tools([{"name": "harbour.get_target"}, {"name": "tides"}]), range(2))
    assert chooser.unknown_name(begun, is_whole=is_whole) == expected
