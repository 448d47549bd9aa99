"""The property names inside a JSON Schema: which there are, and the same schema, and values of it, under other ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from schemafill.data_prep.json_values import leaves_in, parts_of
from schemafill.inference.toolcall.schema_node import SchemaDocument, SchemaNode
from schemafill.inference.toolcall.type_names import INNER_SCHEMAS, NAMED_SCHEMAS

# Keywords by what stands under them.
PROPERTY_SCHEMAS = ("properties", "dependentSchemas", "dependencies")  # property name -> schema
PROPERTY_LISTS = ("required", "optional", "propertyOrdering")  # list of property names
OTHER_SCHEMAS = tuple(key for key in NAMED_SCHEMAS if key != "properties")  # a name that is no property -> schema
SCHEMAS = (
    *INNER_SCHEMAS, "if", "then", "else", "contains", "additionalItems", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
VALUES = ("const", "default", "example")
VALUE_LISTS = ("enum", "examples")
TEXTS = ("description", "title")


def property_names(schema: Any) -> Iterator[str]:
    """Every name that a schema declares under `properties`, at any depth, in its order; names may come twice."""
    for key, part in _keywords(schema):
        if key == "properties":
            yield from part
        yield from (name for one in _schemas_under(key, part) for name in property_names(one))


def listed_texts(schema: Any) -> Iterator[str]:
    """Every text that a schema gives as a value, by itself or inside another: enum, const, default, examples."""
    for key, part in _keywords(schema):
        if key in VALUES or key in VALUE_LISTS:
            yield from (leaf for leaf in leaves_in(part) if isinstance(leaf, str))
        yield from (text for one in _schemas_under(key, part) for text in listed_texts(one))


def map_values(node: SchemaNode | None, value: Any, names: dict[str, str], in_text: Callable[[str], str]) -> Any:
    """A value with its declared keys renamed and its texts mapped. node: what the schema says about it, None: nothing.

    Keys that the schema does not declare stay, and so does a text where the schema lists the possible ones.
    """
    if isinstance(value, dict):
        known = node.properties if node else {}
        free = node.additional if node else None
        return {
            names.get(key, key) if key in known else key: map_values(known.get(key, free), one, names, in_text)
            for key, one in value.items()
        }
    if isinstance(value, list):
        inner = zip(element_nodes(node, value), value, strict=True)
        return [map_values(element, one, names, in_text) for element, one in inner]
    return in_text(value) if isinstance(value, str) and not (node and node.choices) else value


def element_nodes(node: SchemaNode | None, value: list) -> list[SchemaNode | None]:
    """What the schema of a list says about each of its elements."""
    places = node.prefix_items if node else ()
    rest = node.items if node else None
    return [places[at] if at < len(places) else rest for at in range(len(value))]


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    for key, part in schema.items() if isinstance(schema, dict) else ():
        if key not in (*PROPERTY_SCHEMAS, *OTHER_SCHEMAS) or isinstance(part, dict):
            yield key, part


def _schemas_under(key: str, part: Any) -> list[Any]:
    if key in PROPERTY_SCHEMAS or key in OTHER_SCHEMAS:
        return parts_of(part)
    if key in SCHEMAS:
        return part if isinstance(part, list) else [part]
    return []


class SchemaRenamer:
    """A tool's parameters under new property names, everything else as it is, the order of keys included.

    names: old -> new; in_text: what becomes of descriptions and titles.
    """

    def __init__(self, root: Any, names: dict[str, str], in_text: Callable[[str], str]) -> None:
        self._root = root
        self._document = SchemaDocument(root)
        self._own = {name: names[name] for name in property_names(root) if name in names}
        self._in_text = in_text

    def renamed(self) -> Any:
        return self._schema(self._root)

    def _schema(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._schema(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        return {key: self._keyword(schema, key, part) for key, part in schema.items()}

    def _keyword(self, schema: dict[str, Any], key: str, part: Any) -> Any:
        if key in PROPERTY_SCHEMAS and isinstance(part, dict):
            return {self._name(name): self._dependency(one) for name, one in part.items()}
        if key == "dependentRequired" and isinstance(part, dict):
            return {self._name(name): self._names(names) for name, names in part.items()}
        if key in OTHER_SCHEMAS and isinstance(part, dict):
            return {name: self._schema(one) for name, one in part.items()}
        if key in SCHEMAS:
            return self._schema(part)
        if key in PROPERTY_LISTS:
            return self._names(part)
        if key == "$ref" and isinstance(part, str):
            return self._pointer(part)
        if key in VALUES:
            return self._value(schema, part)
        if key in VALUE_LISTS and isinstance(part, list):
            return [self._value(schema, one) for one in part]
        return self._in_text(part) if key in TEXTS and isinstance(part, str) else part

    def _name(self, name: str) -> str:
        return self._own.get(name, name)

    def _names(self, names: Any) -> Any:
        if not isinstance(names, list):  # `required: true` stands beside a single property in some catalogues
            return names
        return [self._name(name) if isinstance(name, str) else name for name in names]

    def _dependency(self, part: Any) -> Any:
        """What stands under a property's name: a schema, or in `dependencies` a list of names."""
        return self._names(part) if isinstance(part, list) else self._schema(part)

    def _value(self, schema: dict[str, Any], value: Any) -> Any:
        return map_values(self._document.node([(schema,)]), value, self._own, lambda text: text)

    def _pointer(self, pointer: str) -> str:
        """A JSON pointer with the steps that are property names renamed; the others as they are written."""
        steps, kind = [], "keyword"
        for raw in pointer.split("/"):
            step = unquote(raw).replace("~1", "/").replace("~0", "~")
            if kind == "property" and step in self._own:
                raw = self._own[step].replace("~", "~0").replace("/", "~1")
            steps.append(raw)
            if kind != "keyword":  # a name has been read, whatever it was
                kind = "keyword"
            elif step in PROPERTY_SCHEMAS:
                kind = "property"
            elif step in OTHER_SCHEMAS:
                kind = "other name"
        return "/".join(steps)
