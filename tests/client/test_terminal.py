"""Values on a terminal are letters; and nothing is printed but by what makes them so."""

from __future__ import annotations

import ast
import re
import unicodedata
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Group
from rich.progress import Progress
from rich.text import Text

from client import terminal
from client.screen_parts import Description, Status, Table
from client.terminal import Console, visible_lines
from python_backend.wire.visible_text import visible

ROOT = Path(__file__).parents[2]
MARKUP = "[/] k [red] :bomb: [link=https://x.example]"
CONTROLS = "a\x1b]0;title\x07b\x9b2Jc\u202ed\rz\x7f"
SHOWN = r"a\x1b]0;title\x07b\x9b2Jc\u202ed\rz\x7f"
# Where the rule is made, and programs of the standard library alone or whose words another program reads.
EXEMPT = {"client/terminal.py", "client/screen_parts.py", "simulator/what_if.py"}
EXEMPT |= {"launcher/private_memory.py", "deploy/bundle/install.py"}
# Of Rich: what reads markup from a string unless it is told otherwise.
READS_MARKUP = {
    "rich.console.Console",
    "rich.table.Table",
    "rich.status.Status",
    "rich.progress.TextColumn",
    "rich.spinner.Spinner",
}
READS_MARKUP_WHOLE = ("rich.markup", "rich.prompt", "rich.panel", "rich.columns", "rich.tree", "rich.rule")
WRITES = {"typer.echo", "typer.secho", "typer.confirm", "typer.prompt", "typer.progressbar"}
WRITES |= {"click.echo", "click.confirm", "click.prompt", "sys.stdout.write", "sys.stderr.write"}
METHODS = {"from_markup", "from_ansi", "status", "render_str"}


def drawn(*renderables: object) -> str:
    file = StringIO()
    Console(file=file, width=200, force_terminal=True).print(*renderables)
    return file.getvalue()


def plain(text: str) -> str:
    """Without the styles that Rich itself writes; they end in m and have numbers alone."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_line_has_no_character_that_does_something() -> None:
    shown = visible("".join(map(chr, range(0x20000))))
    assert not {"Cc", "Cf", "Cs", "Zl", "Zp"} & set(map(unicodedata.category, shown))


def test_words_of_all_scripts_stay_as_they_are() -> None:
    for text in ("naïve", "日本語\u3000の", "עברית", "2\u00a0%", "👩🏽"):
        assert visible(text) == text
    assert visible("a\nb\ud800") == r"a\nb\ud800"
    assert visible_lines("a\nb\tc") == "a\nb\tc"


@pytest.mark.parametrize("value", [MARKUP, CONTROLS], ids=["markup", "controls"])
def test_a_value_is_shown_as_it_is_wherever_it_stands(value: str) -> None:
    table = Table(title=value)
    table.add_column(value)
    table.add_row(value)
    table.add_row(Text(value, style="red"))
    grid = Table.grid()
    grid.add_row(Group(value, Text(value)))
    found = plain(drawn(value, Text(value), table, grid))
    # Rich takes the bell and carriage returns out of a Text that is given to it as one.
    shown = found.replace(r"\x07", "").replace(r"\r", "")
    assert shown.count(visible(value).replace(r"\x07", "").replace(r"\r", "")) == 8
    assert "\x1b" not in found
    assert "\x9b" not in found


def test_a_cell_is_one_line_of_its_table() -> None:
    table = Table(box=None)
    table.add_column("name")
    table.add_row("mine\nkey_2  of somebody else")
    table.add_row(Text("mine\nkey_2  of somebody else"))
    assert len(drawn(table).splitlines()) == 3


def test_spinners_and_bars_show_values_as_they_are() -> None:
    file = StringIO()
    console = Console(file=file, width=200, force_terminal=True)
    with Status(MARKUP, console) as status:
        status.show(f"{MARKUP}{CONTROLS}")
        console.print(status.renderable)
    with Progress(Description(), console=console) as progress:
        progress.add_task(f"{MARKUP}{CONTROLS}", total=1)
    said = file.getvalue()
    assert said.count(f"{MARKUP}a\\x1b]0;title") >= 2
    assert "\x1b]0;" not in said


def test_what_is_printed_drives_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print("first\nsecond", CONTROLS)
    assert capsys.readouterr().out == f"first\nsecond {SHOWN}\n"


def test_words_of_a_model_lose_what_drives_a_terminal_and_keep_what_languages_need() -> None:
    assert terminal.spoken("a\x1b[2Jb\u202ec\n\td") == "a[2Jbc\n\td"
    assert terminal.spoken("می\u200cخواهم 👩\u200d🚀") == "می\u200cخواهم 👩\u200d🚀"


def product_files() -> list[Path]:
    folders = ("client", "launcher", "loadtest", "simulator", "deploy/bundle")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def complaints(source: str) -> list[str]:
    """What prints values, or makes what draws them, other than by the two modules."""
    module = ast.parse(source)
    for_types = {
        id(inner)
        for node in ast.walk(module)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found, prints = [], False
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            prints |= node.module == "client.terminal" and "print" in {each.name for each in node.names}
            whole = {f"{node.module}.{each.name}" for each in node.names}
            found += sorted(whole & READS_MARKUP)
            found += [name for name in whole if name.startswith(READS_MARKUP_WHOLE) or name == "rich.print"]
        elif isinstance(node, ast.Import) and id(node) not in for_types:
            found += [each.name for each in node.names if each.name.split(".")[0] == "rich"]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            is_method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
            of_rich = any(word in called for word in ("console", "Text", "self._console"))
            found += [called] if called in WRITES or (is_method and of_rich) else []
            found += ["markup=True"] if "markup=True" in map(ast.unparse, node.keywords) else []
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Name) and node.id == "print"]
    return found + (["print"] if calls and not prints else [])


@pytest.mark.parametrize("path", product_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_prints_but_by_the_module_that_makes_values_letters(path: Path) -> None:
    if path.relative_to(ROOT).as_posix() not in EXEMPT:
        assert complaints(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "print('a')",
        "from rich.console import Console",
        "def f():\n    from rich.table import Table",
        "import rich.table",
        "from rich import print",
        "from rich.prompt import Prompt",
        "import typer\ntyper.echo(name)",
        "import sys\nsys.stdout.write(name)",
        "Text.from_markup(name)",
        "console.status(name)",
        "console.print(name, markup=True)",
    ],
)
def test_a_new_way_around_it_would_be_found(source: str) -> None:
    assert complaints(source)
    assert not complaints("from client.terminal import print\nprint('a')")
