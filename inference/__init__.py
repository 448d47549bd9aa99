"""`from schemafill.inference import Engine`; nothing is loaded until it is asked for."""


def __getattr__(name: str) -> object:
    if name == "Engine":
        from schemafill.inference.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
