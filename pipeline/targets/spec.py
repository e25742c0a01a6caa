"""``targets`` of params.yaml: what may be measured, as typed settings.

A key is given by the NAME of an environment variable (``api_key_env``) and never by its value; nor may a URL hold one.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.targets.keys import Key, looks_secret
from pipeline.targets.presets import PRESETS, Preset, Served

BUNDLED = "bundled"
PLACES = ("{model}", "{name}", "{port}", "{tier}")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BundledSpec(_Strict):
    """This project's engine on ``artifacts/TIER``, with the settings of ``engine``."""

    kind: Literal["bundled"] = "bundled"


class _Foreign(_Strict):
    api_key_env: str | None = Field(
        None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="name of the environment variable that holds the key"
    )
    image: str | None = Field(
        None, pattern=r"^(.+@)?sha256:[0-9a-f]{64}$", description="digest of the container image that it runs from"
    )

    @property
    def key(self) -> Key:
        return Key(self.api_key_env)


class UrlSpec(_Foreign):
    """A server that somebody else runs, anything OpenAI-compatible."""

    kind: Literal["url"] = "url"
    url: str
    model: str | None = Field(None, description="name to ask for; null: the first of /v1/models")

    @model_validator(mode="after")
    def _plain(self) -> Self:
        """Of the whole entry, so that no message repeats a URL with a password in it."""
        parts = urlsplit(self.url)
        if parts.username is not None or parts.password is not None or parts.query:
            raise ValueError("the url holds a user name, a password or a query; give the key by api_key_env")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the url is {self.url!r}, expected http://HOST:PORT or https://HOST")
        return self


class CommandSpec(_Foreign):
    """A server that is started for the stage and ended after it, with all its children.

    ``preset`` knows the command line of a kind of server; ``arguments`` follow it. Without a preset ``start`` is the
    whole command line, in which {model}, {name}, {port} and {tier} are filled in. What it prints goes to a log.
    """

    kind: Literal["command"] = "command"
    preset: Literal["vllm", "sglang", "llama-server", "llama-cpp-python"] | None = None
    program: list[str] | None = Field(None, description="with a preset: what starts it, if not the usual")
    start: list[str] | None = Field(None, description="without a preset: the command line")
    arguments: list[str] = Field([], description="further ones")
    stop: list[str] | None = Field(None, description="run before it is told to end, as `ray stop`; null: nothing is")
    model: str = Field("artifacts/{tier}", description="what it loads: an artifact, a file, or a name that it knows")
    name: str = Field("{tier}", description="under which it serves the model")
    tensor_parallel: int = Field(1, ge=1)
    pipeline_parallel: int = Field(1, ge=1)
    ray: bool = Field(False, description="spread over the hosts of a Ray cluster that runs already")
    environment: dict[str, str] = Field({}, description="added to this process's; no secrets: it is recorded")
    health: str | None = Field(None, pattern=r"^/", description="answers 200 once it serves; null: the preset's")
    start_timeout_s: float = Field(600, gt=0)
    stop_timeout_s: float = Field(30, gt=0, description="from the first signal to SIGKILL")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Of the whole entry, so that no message repeats a secret that should not stand there."""
        options = [part.partition("=")[0] for part in (*self.arguments, *(self.start or ())) if part.startswith("-")]
        if secret := next((name for name in (*options, *self.environment) if looks_secret(name)), None):
            raise ValueError(
                f"{secret} would hold a secret in params.yaml and in every record: the server's own key is named by "
                "api_key_env; anything else is exported before the run, and the server inherits it"
            )
        if (self.preset is None) == (self.start is None):
            raise ValueError("give one of preset and start: a kind of server that is known, or a whole command line")
        if self.start is not None:
            if self.program is not None:
                raise ValueError("program goes with a preset; start is the whole command line")
            if not any("{port}" in part for part in self.start):
                raise ValueError("start has no {port}: the server must be told where to listen")
            for name in ("tensor_parallel", "pipeline_parallel", "ray"):
                if getattr(self, name) != CommandSpec.model_fields[name].default:
                    raise ValueError(f"{name} goes with a preset; put what it stands for into start")
        else:
            self.known.check(self.tensor_parallel, self.pipeline_parallel, self.ray)
            if self.api_key_env is not None and self.known.key_variable is None:
                raise ValueError(
                    f"a server of preset {self.preset} takes its key on the command line only, where everybody on the "
                    "machine can read it: start it without one, or by itself, and name it as a url"
                )
        return self

    @property
    def known(self) -> Preset:
        """The preset.

        Raises:
            KeyError: there is none.
        """
        return PRESETS[str(self.preset)]

    @property
    def health_path(self) -> str:
        return self.health or ("/health" if self.preset is None else self.known.health)

    def command(self, tier: str, port: int) -> list[str]:
        """The command line for ``tier`` on ``port`` of the loopback interface."""
        model, name = (text.replace("{tier}", tier) for text in (self.model, self.name))
        return self._line(model, name, str(port), tier)

    @property
    def template(self) -> list[str]:
        """The command line with its places left open: what two boots, and two tiers, have in common."""
        return self._line(*PLACES)

    def _line(self, model: str, name: str, port: str, tier: str) -> list[str]:
        served = Served(model, name, port, self.tensor_parallel, self.pipeline_parallel, self.ray)
        own = self.start or self.known.command(self.program, served)
        values = dict(zip(PLACES, (model, name, port, tier), strict=True))
        return [_filled(part, values) for part in (*own, *self.arguments)]


def _filled(part: str, values: dict[str, str]) -> str:
    for place, value in values.items():
        part = part.replace(place, value)
    return part


TargetSpec = Annotated[BundledSpec | UrlSpec | CommandSpec, Field(discriminator="kind")]
ForeignSpec = UrlSpec | CommandSpec
