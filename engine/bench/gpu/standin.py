"""What the engine asks of pydantic, for a machine that has a GPU and little else: settings and manifests as plain
classes. Types are believed, not checked; unknown and missing fields are refused, and the models' own validators run.

Only the GPU check uses this, and only where pydantic is not installed: what is read there it has written itself, or
``seatrial quantize`` has.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

MISSING: Any = object()


class ValidationError(ValueError):
    pass


class Given:
    """A field's default; whatever else pydantic is told of it bounds what users write."""

    def __init__(self, default: Any = MISSING, **_: Any) -> None:
        self.default = default


class Validator:
    def __init__(self, function: Any, mode: str) -> None:
        self.function, self.mode = function, mode


def model_validator(*, mode: str) -> Callable[[Any], Validator]:
    return lambda function: Validator(getattr(function, "__func__", function), mode)


class BaseModel:
    def __init__(self, **given: Any) -> None:
        cls = type(self)
        for validator in cls._validators("before"):
            given = validator.function(cls, given)
        hints = get_type_hints(cls, include_extras=True)
        if unknown := given.keys() - hints.keys():
            raise ValidationError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
        for name, hint in hints.items():
            default = getattr(cls, name, MISSING)
            default = default.default if isinstance(default, Given) else default
            if name in given:
                value = coerce(hint, given[name])
            elif default is MISSING or default is ...:
                raise ValidationError(f"{cls.__name__} needs {name}")
            else:
                value = default
            self.__dict__[name] = value
        for validator in cls._validators("after"):
            validator.function(self)

    @classmethod
    def _validators(cls, mode: str) -> list[Validator]:
        own = [v for base in reversed(cls.__mro__) for v in vars(base).values()]
        return [v for v in own if isinstance(v, Validator) and v.mode == mode]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.__dict__.items())))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"

    def model_copy(self, *, update: dict[str, Any] | None = None) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__ | (update or {}))
        return copy

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        return {k: plain(v) for k, v in self.__dict__.items()}

    def model_dump_json(self, *, indent: int | None = None) -> str:
        return json.dumps(self.model_dump(), indent=indent)

    @classmethod
    def model_validate(cls, given: dict[str, Any]) -> Self:
        return cls(**given)

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        try:
            return cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError) as e:
            raise ValidationError(str(e)) from e


def coerce(hint: Any, value: Any) -> Any:
    """``value`` with models in the place of the objects that stand for them."""
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint(**value) if isinstance(value, dict) else value
    if origin is Annotated:
        return coerce(inner[0], value)
    if origin in (Union, types.UnionType):
        known = [h for h in inner if isinstance(h, type) and issubclass(h, BaseModel)]
        return coerce(known[0], value) if known and value is not None else value
    if origin is list and isinstance(value, list):
        return [coerce(inner[0], v) for v in value]
    if origin is dict and isinstance(value, dict):
        return {k: coerce(inner[1], v) for k, v in value.items()}
    return value


def plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def install() -> bool:
    """Whether it stands in: before anything of the engine is imported, and where there is no pydantic."""
    if importlib.util.find_spec("pydantic") is not None:
        return False
    module: Any = types.ModuleType("pydantic")
    module.BaseModel, module.ValidationError = BaseModel, ValidationError
    module.Field, module.ConfigDict, module.model_validator = Given, dict, model_validator
    sys.modules["pydantic"] = module
    return True
