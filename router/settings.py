"""What the router is told at start: one TOML file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from router.core.address import is_loopback
from router.core.json_answers import fault_of_schema

if TYPE_CHECKING:
    from pathlib import Path

# Model names reach Triton: nothing in them may look like a path, an option or a command.
_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
_TRITON_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_HOST_NAME = r"[a-z0-9][a-z0-9._-]{0,252}"


class SettingsError(Exception):
    """A setting that cannot be used: the message names the key, the value and what is allowed."""


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that clients may name, and the Triton models behind it."""

    name: Annotated[str, Meta(pattern=_NAME)]
    checkpoint_dir: str
    pipeline: Annotated[str, Meta(pattern=_TRITON_NAME)] = "ensemble"
    engine: Annotated[str, Meta(pattern=_TRITON_NAME)] = "tensorrt_llm"
    # What tells this release of the model from others, where that is known.
    weights_sha256: str = ""
    tokenizer_sha256: str = ""
    parameters: dict[str, str] = {}


class EmbedderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model for embeddings that clients may name, and the Triton model behind it."""

    name: Annotated[str, Meta(pattern=_NAME)]
    checkpoint_dir: str
    triton_model: Annotated[str, Meta(pattern=_TRITON_NAME)] = "embeddings"
    weights_sha256: str = ""
    tokenizer_sha256: str = ""


class TritonSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Triton server, at HOST:PORT or unix:PATH; or all that a name or a file leads to at the moment:
    dns:///HOST:PORT, file:///PATH.

    The router loads models only where nobody else can: on a Unix socket, with a client's certificate, or with
    the secret of Triton's restricted protocols.
    """

    url: str
    secret: str = ""
    # PEM files; the name is the one in the server's certificate, where that is not its host.
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_name: str = ""
    # Whether one that speaks no TLS is asked without it, as one of 0.7.0, with the secret.
    plain_too: bool = False


class CascadeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name that clients may ask: the small model's answer where it passes every check, else the large's."""

    name: Annotated[str, Meta(pattern=_NAME)]
    small: Annotated[str, Meta(pattern=_NAME)]
    large: Annotated[str, Meta(pattern=_NAME)]
    # The mean of the natural log probabilities of an answer's tokens.
    least_log_prob: Annotated[float, Meta(le=0)] | None = None
    schema: str = ""  # as JSON
    # A model that is asked whether the answer is good, and how: with {prompt} and {answer} in their places.
    judge: Annotated[str, Meta(pattern=_NAME)] | Literal[""] = ""
    judge_prompt: str = (
        "Somebody was asked:\n\n{prompt}\n\nThey answered:\n\n{answer}\n\n"
        "Is this answer correct and complete? Say yes or no."
    )


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an operator may choose for any deployment."""

    max_body_bytes: Annotated[int, Meta(ge=1024, le=64 << 20)] = 1 << 20
    stop_timeout_s: Annotated[float, Meta(gt=0, le=600)] = 5.0
    # Instead of the data directory, for all that a router keeps.
    state_dir: str = ""
    # Where tenants, keys and usage are kept: SQLite in the data directory, or a postgresql:// URL.
    store_url: str = ""
    # The secret that keys are hashed with; made in the data directory, shared by routers that share a store.
    pepper_file: str = ""
    # Whether all hosts see one state directory, with the files of releases, or have them from the store.
    release_files: Literal["shared", "store"] = "shared"
    # Where routers that share a store tell each other what they use: redis://, rediss:// or unix://.
    redis_url: str = ""
    # For so long after its end the answer to a request with an Idempotency-Key is kept, and so is a response
    # that was made in the background; for so long the former is made for nobody.
    answers_kept_s: Annotated[float, Meta(ge=1, le=86400)] = 600.0
    unread_grace_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    # How much of the answers of tenants that allow it is kept for the same request, and what part of its
    # price such an answer costs.
    answer_cache_bytes: Annotated[int, Meta(ge=1 << 20, le=64 << 30)] = 64 << 20
    cached_answer_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    cached_answers_shared: bool = False  # by all users of a tenant
    # Names behind which a small model is asked first.
    cascades: tuple[CascadeSettings, ...] = ()
    max_spool_bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    max_file_bytes: Annotated[int, Meta(ge=1 << 20, le=512 << 20)] = 64 << 20
    max_files_bytes_per_tenant: Annotated[int, Meta(ge=1 << 20)] = 1 << 30
    # Of one image: its file, and what its header says of its size. Hosts that images may be fetched from.
    max_image_bytes: Annotated[int, Meta(ge=1024, le=64 << 20)] = 8 << 20
    max_image_pixels: Annotated[int, Meta(ge=1, le=1 << 28)] = 16 << 20
    image_hosts: tuple[Annotated[str, Meta(pattern=f"^{_HOST_NAME}$")], ...] = ()
    batch_concurrency: Annotated[int, Meta(ge=1, le=1024)] = 8
    # PEM files: with the first two clients connect by TLS, with the third they must show a certificate.
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    # A plain port on loopback for /health/ alone; 0 is none.
    health_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    # Names beside those of loopback by which a router without keys may be called, and origins whose web pages
    # may call this one, as https://HOST[:PORT].
    allowed_hosts: tuple[Annotated[str, Meta(pattern=f"^{_HOST_NAME}$")], ...] = ()
    cors_origins: tuple[Annotated[str, Meta(pattern=f"^https?://{_HOST_NAME}(:[0-9]{{1,5}})?$")], ...] = ()
    # Whether /metrics is shown to whoever reaches the port, though there are keys.
    metrics_open: bool = False
    # A file of rules, a check as package.module:factory, and the models they are for: none named is all.
    safety_rules: str = ""
    safety_check: str = ""
    safety_models: tuple[str, ...] = ()
    # Where prompts and answers are logged, redacted; nowhere unless given. 0 days is for ever.
    prompt_log_dir: str = ""
    prompt_log_days: Annotated[int, Meta(ge=0)] = 30
    retention_days: Annotated[int, Meta(ge=0)] = 0
    # The audit log and the history of releases.
    history_days: Annotated[int, Meta(ge=0)] = 0
    # Folders in which the administration finds what releases can be made from.
    release_sources: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    # How long requests wait for a model that is being loaded again, and how long one may say nothing at all
    # before it is looked into.
    revive_wait_s: Annotated[float, Meta(ge=0, le=600)] = 60.0
    silence_limit_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    # Of the requests, how many may be sent to a second replica because their first token is late.
    hedge_percent: Annotated[float, Meta(ge=0, le=50)] = 0.0
    # Where some engines are there for prompts: how long one is at least that they compute for another.
    apart_tokens: Annotated[int, Meta(ge=1)] = 512
    # Whether queue delays follow objectives, and over how long is measured what they are judged by.
    tuning: bool = True
    tuning_window_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    # Texts that system messages and prompts begin with: their cached tokens, and no others, tenants share.
    shared_prefixes: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    # How requests are let in: by price, fairness and objectives, or as they come. The places of each release:
    # 0 is as many as its engines have, -1 no limit at all.
    admission: Literal["objectives", "first_come"] = "objectives"
    admission_places: Annotated[int, Meta(ge=-1, le=1 << 20)] = 0
    replica_start_s: Annotated[float, Meta(ge=1.0, le=7200.0)] = 120.0
    # One line for people, or one JSON object, for each thing that is said.
    log_format: Literal["text", "json"] = "text"
    # Where spans are sent, http://HOST:4318; nowhere unless given. What is shown there, as NAME=VALUE with
    # commas between, or one a line in a file. How many of the requests are traced that do not say it.
    otlp_endpoint: str = ""
    otlp_headers: str = ""
    otlp_headers_file: str = ""
    trace_percent: Annotated[float, Meta(ge=0, le=100)] = 100.0


class PlacedOptions(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known before anything is started."""

    data_dir: str
    host: str = "127.0.0.1"


class Settings(PlacedOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything the router needs to start."""

    triton_servers: Annotated[tuple[TritonSettings, ...], Meta(min_length=1)]
    models: Annotated[tuple[ModelSettings, ...], Meta(min_length=1)]
    embedders: tuple[EmbedderSettings, ...] = ()
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    # For Triton's clients; 0 is any free port, -1 none.
    grpc_port: Annotated[int, Meta(ge=-1, le=65535)] = -1
    drain_timeout_s: Annotated[float, Meta(ge=0)] = 30.0
    # `inflight release add`, with the options of this installation, where the files of releases are here.
    release_command: tuple[str, ...] = ()


Kind = TypeVar("Kind", bound=Options)


def load(path: Path) -> Settings:
    return parse(_read(path))


def load_options(path: Path) -> PlacedOptions:
    """For a launcher that knows the rest only later."""
    return _convert(_read(path), PlacedOptions)


def parse(text: str) -> Settings:
    settings = _convert(text, Settings)
    _check(settings)
    return settings


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error


def _convert(text: str, kind: type[Kind]) -> Kind:
    try:
        values: dict[str, Any] = msgspec.toml.decode(text)
    except msgspec.DecodeError as error:
        raise SettingsError(f"the settings file is not valid TOML: {error}") from error
    try:
        options = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(_describe(str(error), kind)) from error
    for cascade in options.cascades:
        _check_cascade(cascade, {each.name for each in options.cascades})
    return options


def _describe(problem: str, whole: type[Options]) -> str:
    what, _, where = problem.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if "unknown field" in what:
        tables: dict[str, type[msgspec.Struct]] = {
            "models": ModelSettings,
            "embedders": EmbedderSettings,
            "cascades": CascadeSettings,
            "triton_servers": TritonSettings,
        }
        kind = tables.get(path.partition("[")[0], whole)
        allowed = ", ".join(kind.__struct_fields__)
        key = ".".join(filter(None, [path, what.split("`")[1]]))
        return f"unknown setting {key}: allowed are {allowed}"
    return f"setting {path}: {what}" if path else f"settings: {what}"


def _check(settings: Settings) -> None:
    urls = [server.url for server in settings.triton_servers]
    for server in settings.triton_servers:
        _check_triton(server)
    for url in urls:
        if urls.count(url) > 1:
            raise SettingsError(f"triton_servers: the url {url!r} is given twice")
    names = [*(model.name for model in settings.models), *(model.name for model in settings.embedders)]
    names += [cascade.name for cascade in settings.cascades]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"models: the name {name!r} is given twice")


def _check_cascade(cascade: CascadeSettings, cascades: set[str]) -> None:
    where = f"cascades: {cascade.name}"
    if cascade.small == cascade.large:
        raise SettingsError(f"{where}: small and large are both {cascade.small!r}: name two models")
    if among := cascades & {cascade.small, cascade.large, cascade.judge}:
        raise SettingsError(f"{where}: {min(among)!r} is itself a cascade: name a model")
    if cascade.least_log_prob is None and not cascade.schema and not cascade.judge:
        raise SettingsError(f"{where}: no check is set: set at least one of least_log_prob, schema and judge")
    if cascade.judge and "{answer}" not in cascade.judge_prompt:
        raise SettingsError(f"{where}: judge_prompt lacks {{answer}}, the placeholder for the answer")
    if cascade.schema:
        try:
            fault = fault_of_schema(msgspec.json.decode(cascade.schema))
        except msgspec.DecodeError as error:
            fault = f"it is not JSON: {error}"
        if fault is not None:
            raise SettingsError(f"{where}: schema: {fault}")


def _check_triton(server: TritonSettings) -> None:
    files = (server.tls_ca, server.tls_cert, server.tls_key)
    if server.url.startswith("unix:/"):
        if any(files):
            raise SettingsError(f"triton_servers: {server.url}: TLS is not supported over a Unix socket")
        return
    if not re.fullmatch(r"(dns:///)?[^\s/]+:\d{1,5}|file:///.+", server.url):
        forms = "HOST:PORT, unix:/PATH, dns:///HOST:PORT or file:///PATH"
        raise SettingsError(f"triton_servers: url = {server.url!r}: expected {forms}")
    if any(files) and not all(files):
        raise SettingsError(
            f"triton_servers: {server.url}: set tls_ca, tls_cert and tls_key together, or none of them"
        )
    if server.plain_too and not any(files):
        raise SettingsError(f"triton_servers: {server.url}: plain_too is only allowed with tls_ca")


def check_reachable(host: str, has_keys: bool) -> None:
    """Whoever reaches another address than this machine's own must have a key."""
    if not (has_keys or is_loopback(host)):
        raise SettingsError(
            f"host = {host!r}: other machines can reach this address, and there are no API keys: create one "
            "with `inflight keys create`, or serve on a loopback address (127.0.0.1, ::1, localhost)"
        )
