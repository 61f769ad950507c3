"""What `inflight up` is told: defaults, then inflight.toml, then flags; the unknown is refused by name."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from python_backend.wire.encoder_parameters import ENCODER_KEYS, parse_encoder_parameters
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import parse_engine_parameters
from python_backend.wire.pools import OF_SERVER

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_FILE = Path("inflight.toml")
SECTIONS = ("stack", "router", "engine", "embeddings")
# The launcher writes these itself, from [stack] and from what it started.
ROUTER_KEYS_OF_OURS = frozenset(
    {"host", "port", "grpc_port", "triton_servers", "data_dir", "drain_timeout_s", "models", "embedders"}
    | {"release_command"}
)
# The launcher reads these files, and tells the router what is in them.
SECRETS_BY_FILE = {"store_url_file": "store_url", "redis_url_file": "redis_url"}
ROUTER_PATHS = frozenset(
    {"state_dir", "pepper_file", "tls_cert", "tls_key", "tls_client_ca", "safety_rules", "prompt_log_dir"}
    | {"otlp_headers_file", "release_sources"}
    | SECRETS_BY_FILE.keys()
)
# Where adapters lie: each has its place in the release that was made of it.
ADAPTERS_DIR = "inflight_adapters_dir"
ENGINE_KEYS_OF_OURS = frozenset({"gpt_model_path", "tokenizer_dir", ADAPTERS_DIR, *OF_SERVER})
# Where packed weights are kept, not what they are: it is no part of a release.
PACKED_CACHE = "inflight_packed_cache_dir"
# Where the runtimes lie that have an environment of their own.
RUNTIMES_DIR = "inflight_runtimes_dir"
MOST_TRITON_SERVERS = 16


class SettingsError(Exception):
    """A setting that cannot be used: the message names the key, the value and what is allowed."""


def default_data_dir() -> Path:
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base.absolute() / "inflight"  # what is started runs in other directories


@dataclass(frozen=True)
class StackSettings:
    host: str = "127.0.0.1"
    port: int = 8080
    data_dir: Path = field(default_factory=default_data_dir)
    model: str = "smollm2-135m-instruct"
    embeddings: str = "all-minilm-l6-v2"  # nothing: none is served
    triton_servers: int | str = 1  # with the same models each; `all`: one for each GPU, or group of them
    prefill_servers: int = 0  # of them, that compute prompts for the others
    triton_grpc_port: int = 0  # of the first one
    triton_metrics_port: int = 0
    grpc_port: int = 8081  # of the router, for Triton's clients; -1: none
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for key in ("port", "triton_grpc_port", "triton_metrics_port"):
            if not 0 <= getattr(self, key) <= 65535:
                raise refusal(f"stack.{key}", getattr(self, key), "1 to 65535, or 0 for any free port")
        if not -1 <= self.grpc_port <= 65535:
            allowed = "1 to 65535, 0 for any free port, or -1 for none"
            raise refusal("stack.grpc_port", self.grpc_port, allowed)
        servers = self.triton_servers
        if servers != "all" and not (isinstance(servers, int) and 1 <= servers <= MOST_TRITON_SERVERS):
            raise refusal("stack.triton_servers", servers, f"1 to {MOST_TRITON_SERVERS}, or all")
        most = MOST_TRITON_SERVERS if isinstance(servers, str) else servers
        if not 0 <= self.prefill_servers < most:
            allowed = f"0 to {most - 1}, fewer than triton_servers: the others answer"
            raise refusal("stack.prefill_servers", self.prefill_servers, allowed)
        if not 0 <= self.drain_timeout_s <= 3600:
            raise refusal("stack.drain_timeout_s", self.drain_timeout_s, "0 to 3600 seconds")
        ports = (self.port, self.grpc_port, self.triton_grpc_port, self.triton_metrics_port)
        chosen = [port for port in ports if port > 0]
        if len(set(chosen)) < len(chosen):
            raise SettingsError(
                f"port, grpc_port, triton_grpc_port and triton_metrics_port must differ; they are {chosen}"
            )


@dataclass(frozen=True)
class Settings:
    """`chosen` are the keys of [stack] that the user has set, be it to their defaults."""

    stack: StackSettings = field(default_factory=StackSettings)
    router: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, str] = field(default_factory=dict)
    embeddings: Mapping[str, str] = field(default_factory=dict)
    chosen: frozenset[str] = frozenset()
    file: Path | None = field(default=None, compare=False)  # where they were read from


def load_settings(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Read `file` (or ./inflight.toml when it is there); flags that are not None win over it."""
    document = read_file(file)
    for section, content in document.items():
        if section not in SECTIONS:
            raise SettingsError(f"unknown section [{section}]; allowed: {', '.join(SECTIONS)}")
        if not isinstance(content, dict):
            raise SettingsError(f"{section} is {content!r}; it must be a section: [{section}]")
    given = {key: value for key, value in flags.items() if value is not None}
    stack = {**document.get("stack", {}), **given}
    return Settings(
        stack=stack_settings(stack),
        router=router_settings(document.get("router", {})),
        engine=engine_settings(document.get("engine", {})),
        embeddings=embeddings_settings(document.get("embeddings", {})),
        chosen=frozenset(stack),
        file=_file_read(file),
    )


def _file_read(file: Path | None) -> Path | None:
    path = file or DEFAULT_FILE
    return path.absolute() if file is not None or path.is_file() else None


def read_file(file: Path | None) -> dict[str, Any]:
    path = file or DEFAULT_FILE
    if file is None and not path.is_file():
        return {}
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8, as TOML must be: {error}") from error


def stack_settings(values: Mapping[str, Any]) -> StackSettings:
    allowed = [key.name for key in fields(StackSettings)]
    typed: dict[str, Any] = {}
    for key, value in values.items():
        if key not in allowed:
            raise SettingsError(f"unknown key stack.{key}; allowed: {', '.join(allowed)}")
        typed[key] = of_type_of_default(key, value)
    return StackSettings(**typed)


def of_type_of_default(key: str, value: Any) -> Any:
    if key == "data_dir":
        if not isinstance(value, str | Path) or not str(value):
            raise refusal("stack.data_dir", value, "the path of a directory")
        return Path(value).expanduser().absolute()
    if key == "triton_servers" and isinstance(value, str):
        return int(value) if value.isdecimal() else value  # from a command line
    default = getattr(StackSettings, key)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default) or (value == "" and key != "embeddings"):
        names = {int: "a whole number", float: "a number", str: "a text"}
        raise refusal(f"stack.{key}", value, names[type(default)])
    return value


def router_settings(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in values:
        if key in ROUTER_KEYS_OF_OURS:
            raise SettingsError(f"router.{key} is set by the launcher itself; see [stack]")
    return {key: _absolute(value) if key in ROUTER_PATHS else value for key, value in values.items()}


def _absolute(path: Any) -> Any:
    """The router runs in another directory; what is no path is left for the router to refuse."""
    if isinstance(path, list):
        return [_absolute(each) for each in path]
    return os.path.abspath(os.path.expanduser(path)) if isinstance(path, str) and path else path


def engine_settings(values: Mapping[str, Any]) -> Mapping[str, str]:
    if key := next((each for each in values if each in ENGINE_KEYS_OF_OURS), None):
        source = f"{OF_SERVER[key]} in the environment" if key in OF_SERVER else "stack.model"
        raise SettingsError(f"engine.{key} is set by the launcher itself, from {source}")
    parameters = _as_parameters("engine", values)
    try:
        parse_engine_parameters({"gpt_model_type": "V1", "gpt_model_path": "-", **parameters})
    except InflightError as error:
        raise SettingsError(f"[engine] {error}") from error
    return parameters


def embeddings_settings(values: Mapping[str, Any]) -> Mapping[str, str]:
    if unknown := sorted(values.keys() - set(ENCODER_KEYS)):
        raise SettingsError(f"unknown key embeddings.{unknown[0]}; allowed: {', '.join(ENCODER_KEYS)}")
    parameters = _as_parameters("embeddings", values)
    try:
        parse_encoder_parameters(parameters)
    except InflightError as error:
        raise SettingsError(f"[embeddings] {error}") from error
    return parameters


def _as_parameters(section: str, values: Mapping[str, Any]) -> dict[str, str]:
    """As texts, which is what config.pbtxt has."""
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str | dict):
            raise refusal(f"{section}.{key}", value, "a text, a number, true or false")
    return {
        key: json.dumps(value) if isinstance(value, bool | dict) else str(value)
        for key, value in values.items()
    }


def keeps_files(settings: Settings) -> bool:
    """Whether files of releases are in the store, because hosts share nothing else."""
    return bool(settings.router.get("release_files") == "store")


def state_dir(settings: Settings) -> Path:
    """Where the router keeps what it must not lose, and the releases lie."""
    return Path(settings.router.get("state_dir") or settings.stack.data_dir)


def packed_cache_dir(settings: Settings) -> str:
    """Packed weights belong to the models: they are kept with them unless the user wants them elsewhere."""
    chosen = settings.engine.get(PACKED_CACHE) or str(settings.stack.data_dir / "packed")
    # Triton runs in another directory, where a relative path would lead elsewhere.
    return os.path.abspath(os.path.expanduser(chosen))


def runtimes_dir(settings: Settings) -> str:
    chosen = settings.engine.get(RUNTIMES_DIR) or str(settings.stack.data_dir / "runtimes")
    return os.path.abspath(os.path.expanduser(chosen))


def adapters_dir(settings: Settings) -> str:
    return os.path.abspath(state_dir(settings).expanduser() / "releases" / "adapters")


def refusal(key: str, value: object, allowed: str) -> SettingsError:
    return SettingsError(f"{key} is {value!r}; allowed: {allowed}")
