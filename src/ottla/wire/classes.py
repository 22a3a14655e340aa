"""The classes behind declarations: slots, and a constructor, comparison and repr made when first used.

Purpose: `dataclasses` writes and compiles three functions per class at import; with six hundred structs that
is most of a second. Here a class is born with its slots only and compiles its constructor on the first call.

Rules: knows names and defaults, nothing of versions or bytes. Owned by `ottla.wire.schema`.
"""

from operator import attrgetter
from typing import Any

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


def build_class(cls: type, names: list[str]) -> type:
    """The slotted twin of a declaration's class body."""
    body = {key: value for key, value in cls.__dict__.items() if key not in names}
    body.pop("__dict__", None)
    body.pop("__weakref__", None)
    body.update(
        __slots__=tuple(names),
        __init__=_first_init,
        __eq__=_first_eq,
        __hash__=None,
        __repr__=_repr,
        __match_args__=(),
        __qualname__=cls.__qualname__,
    )
    return type(cls)(cls.__name__, cls.__bases__, body)


def replace(instance: Any, **changes: Any) -> Any:
    """A copy with some fields changed, as `dataclasses.replace` makes one."""
    cls = type(instance)
    return cls(**{name: getattr(instance, name) for name in cls.__slots__} | changes)


def _first_init(self: Any, **values: Any) -> None:
    cls = type(self)
    cls.__init__ = make_init(cls)
    cls.__init__(self, **values)


def make_init(cls: Any) -> Any:
    """Compiles `__init__(self, *, a=..., b=...)`; lists and structs are made anew for each instance."""
    scope: dict[str, Any] = {"MISSING": MISSING}
    parameters, body = [], []
    for field in cls.SCHEMA.fields:
        name, default = field.name, field.default
        scope[f"d_{name}"] = default
        if isinstance(default, list) or hasattr(default, "SCHEMA"):
            fresh = "[]" if isinstance(default, list) else f"c_{name}()"
            scope[f"c_{name}"] = type(default)
            parameters.append(f"{name}=MISSING")
            body.append(f"self.{name} = {fresh} if {name} is MISSING else {name}")
        else:
            parameters.append(f"{name}=d_{name}")
            body.append(f"self.{name} = {name}")
    star = ["*", *parameters] if parameters else []
    source = f"def __init__({', '.join(['self', *star])}):\n    " + "\n    ".join(body or ["pass"])
    exec(compile(source, f"<constructor of {cls.__name__}>", "exec"), scope)
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _first_eq(self: Any, other: object) -> Any:
    cls: Any = type(self)
    cls.__eq__ = make_eq(cls)
    return cls.__eq__(self, other)


def make_eq(cls: Any) -> Any:
    """Equal when of one class and equal in every field."""
    if not cls.__slots__:
        return lambda self, other: type(other) is cls or NotImplemented
    values = attrgetter(*cls.__slots__)

    def __eq__(self: Any, other: object) -> Any:
        if type(other) is not cls:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _repr(self: Any) -> str:
    parts = (f"{name}={getattr(self, name)!r}" for name in type(self).__slots__)
    return f"{type(self).__qualname__}({', '.join(parts)})"
