"""`from schemafill.inference import Engine, SamplingParams, UserError`; nothing is loaded until it is asked for."""


def __getattr__(name: str) -> object:
    if name == "Engine":
        from schemafill.inference.engine import Engine

        return Engine
    if name in ("SamplingParams", "UserError"):
        from schemafill.inference import request

        return getattr(request, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
