"""Every command on the pages exists as it is written: programs, subcommands and options."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from deploy.compose_file import compose
from launcher.commands.main import app
from loadtest.users.options import add_options

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
APP: Any = get_command(app)
MAKEFILE = (ROOT / "Makefile").read_text()
SERVICES: dict[str, Any] = compose()["services"]
PROFILES = {profile for service in SERVICES.values() for profile in service.get("profiles", ())}
# Of compose's command line: subcommands, options, and options that a word follows.
SUBCOMMANDS = {
    "build",
    "config",
    "down",
    "exec",
    "logs",
    "ps",
    "pull",
    "restart",
    "run",
    "start",
    "stop",
    "up",
}
ALONE = {
    "-d",
    "-T",
    "-f",
    "-q",
    "-v",
    "--build",
    "--follow",
    "--no-deps",
    "--remove-orphans",
    "--rm",
    "--volumes",
    "--wait",
}
WITH_A_WORD = {"-e", "-u", "--env", "--since", "--scale", "--tail", "--user"}
_OPTION = re.compile(r"--?[a-zA-Z][\w-]*")
_VARIABLE = re.compile(r"[A-Z_]+=.*", re.DOTALL)


@dataclass(frozen=True)
class Written:
    """A command as a page has it; one in a block stands there whole, one in a sentence may be a part."""

    page: str
    text: str
    is_whole: bool

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"

    @property
    def words(self) -> list[str]:
        words = shlex.split(self.text, comments=True)
        ends = [place for place, word in enumerate(words) if word in ("|", ">", "<", "&&", ";", "...", "…")]
        words = words[: min(ends, default=len(words))]
        while words and _VARIABLE.fullmatch(words[0]):
            words = words[1:]
        return words


def written(page: Path) -> Iterator[Written]:
    text, name = page.read_text(), str(page.relative_to(ROOT))
    for block in re.findall(r"^```(?:bash|sh|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            yield Written(name, line.strip().removeprefix("$ "), is_whole=True)
    for part in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        yield Written(name, part.strip(), is_whole=False)


def check_inflight(words: list[str], is_whole: bool) -> None:
    """Its subcommands and options are there; a whole command is taken as it stands, without being run."""
    command, path = APP, ["inflight"]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{' '.join(path)} has no {words[0]}"
        path.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands") or "--help" in words:
        return
    if is_whole:
        command.make_context(" ".join(path), list(words))  # raises UsageError, which says what is wrong
        return
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    ours = words[: words.index("--")] if "--" in words else words
    assert {word.split("=")[0] for word in ours if _OPTION.match(word)} <= known


def check_make(words: list[str], is_whole: bool) -> None:
    targets = [word for word in words if "=" not in word and not word.startswith("-")]
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), f"make has no target {target}"
    for name in variables:
        assert re.search(rf"^{name} \?=", MAKEFILE, re.MULTILINE), f"the Makefile has no {name}"
    if targets == ["serve"] and "ARGS" in variables:
        check_inflight(["up", *shlex.split(variables["ARGS"])], is_whole)


def check_module(words: list[str], is_whole: bool) -> None:
    """`python -m`: a module of ours, whose source has the options, or one that is installed."""
    module, *rest = words
    path = ROOT / module.replace(".", "/")
    files = [path.with_suffix(".py"), path / "__main__.py"]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        package = module.partition(".")[0]
        assert not (ROOT / package).is_dir(), f"there is no module {module}"
        assert find_spec(package) is not None, f"there is no module {module}"
        return
    folder = found.parent if found.name == "__main__.py" else found
    sources = folder.rglob("*.py") if folder.is_dir() else [folder, *(folder.parent.glob("*.py"))]
    source = "\n".join(file.read_text() for file in sources)
    for option in (word.split("=")[0] for word in rest if word.startswith("--")):
        assert f'"{option}"' in source, f"{module} has no {option}"


def check_locust(words: list[str], is_whole: bool) -> None:
    class Parser(argparse.ArgumentParser):
        def add_argument(self, *names: str, include_in_web_ui: bool = True, **options: Any) -> Any:
            return super().add_argument(*names, **options)

    parser = Parser()
    add_options(parser)
    ours = {name for action in parser._actions for name in action.option_strings}
    package = find_spec("locust")
    assert package is not None
    assert package.origin is not None
    theirs = (Path(package.origin).parent / "argument_parser.py").read_text()
    for option in (word.split("=")[0] for word in words if word.startswith("-")):
        assert option in ours or f'"{option}"' in theirs, f"locust has no {option}"
    if "-f" in words:
        assert (ROOT / words[words.index("-f") + 1]).is_file()


def check_compose(words: list[str], is_whole: bool) -> None:
    while words and words[0] == "--profile":
        assert words[1] in PROFILES, f"there is no profile {words[1]}"
        words = words[2:]
    if not words:
        return
    subcommand, *rest = words
    assert subcommand in SUBCOMMANDS, f"docker compose {subcommand} is not known here"
    services: list[str] = []
    while rest:
        word, *rest = rest
        if word.startswith("-"):
            assert word in ALONE | WITH_A_WORD, f"{word} of docker compose is not known here"
            if word == "--scale":
                assert rest[0].partition("=")[0] in SERVICES
            rest = rest[1:] if word in WITH_A_WORD else rest
            continue
        assert word in SERVICES, f"docker-compose.yml has no {word}"
        services.append(word)
        if subcommand in ("exec", "run"):
            break
    inside = [*SERVICES[services[0]]["entrypoint"], *rest] if subcommand == "run" else rest
    if inside and inside[0] == "inflight":
        check_inflight(inside[1:], is_whole)


Check = Callable[[list[str], bool], None]
PROGRAMS: list[tuple[str, Check]] = [
    (r"(?:\.venv/bin/|\./inflight-\S+/bin/)?inflight", check_inflight),
    (r"make", check_make),
    (r"(?:\.venv/bin/)?python3? -m", check_module),
    (r"locust", check_locust),
    (r"docker compose", check_compose),
]
IN_TWO_WORDS = (check_module, check_compose)


def commands() -> Iterator[tuple[Written, Check]]:
    for each in dict.fromkeys(each for page in PAGES for each in written(page)):
        bare = re.sub(r"^(?:[A-Z_]+=\S+ )*", "", each.text)
        for program, check in PROGRAMS:
            if re.match(rf"{program}(?: |$)", bare):
                yield each, check


COMMANDS = list(commands())


@pytest.mark.parametrize(("each", "check"), COMMANDS, ids=[str(each) for each, _ in COMMANDS])
def test_every_documented_command_exists(each: Written, check: Check) -> None:
    try:
        check(each.words[2 if check in IN_TWO_WORDS else 1 :], each.is_whole)
    except AssertionError:
        raise
    except Exception as error:  # click's, of which Typer has a copy of its own
        pytest.fail(f"{each}: {getattr(error, 'message', error)}")


def help_texts(command: Any = APP, path: str = "inflight") -> Iterator[tuple[str, str]]:
    yield path, command.help or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from help_texts(below, f"{path} {name}")


HELP_TEXTS = list(help_texts())


@pytest.mark.parametrize(("path", "text"), HELP_TEXTS, ids=[path for path, _ in HELP_TEXTS])
def test_a_help_text_begins_with_a_sentence_and_its_examples_are_commands(path: str, text: str) -> None:
    assert text.split("\n\n")[0].rstrip().endswith("."), f"{path} --help has no first sentence"
    for example in re.findall(r"^`inflight ([^`]+)`", text, re.MULTILINE):
        check_inflight(shlex.split(example), is_whole=True)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (check_inflight, "serve"),
        (check_inflight, "loadtest run --urls http://127.0.0.1:8080"),
        (check_inflight, "loadtest run --users many"),
        (check_inflight, "slo set"),
        (check_make, "server"),
        (check_make, "serve ARGS=--prot"),
        (check_make, "serve ARG=--port"),
        (check_module, "benchmarks.nothing"),
        (check_module, "deploy.monitoring --dashboards"),
        (check_locust, "-f loadtest/locustfile.py --shapes ramp"),
        (check_locust, "-f loadtest/nothing.py"),
        (check_compose, "--profile tpu up -d"),
        (check_compose, "stop gateway"),
        (check_compose, "exec router inflight release canaries"),
    ],
)
def test_a_command_that_does_not_exist_would_be_found(check: Check, words: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  # each check fails in its own way
        check(words.split(), True)


def test_commands_of_every_program_are_documented() -> None:
    assert {check for _, check in COMMANDS} == {check for _, check in PROGRAMS}
