"""The tables of what our engine reads, for docs/models.md: `python -m` this module writes them there."""

from __future__ import annotations

from pathlib import Path

from python_backend.engine.checkpoint.gguf_groups import GROUPED_KINDS
from python_backend.engine.formats import READABLE
from python_backend.engine.models.families import FAMILIES

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
BEGIN, END = "<!-- readable: begin -->\n", "<!-- readable: end -->\n"


def tables() -> str:
    families = [("architecture", "particularities"), ("---", "---")]
    families += [(f"`{name}`", family.particularities) for name, family in FAMILIES.items()]
    kept = ", ".join(kind.name for kind in GROUPED_KINDS)
    formats = [("weights", "read"), ("---", "---"), ("safetensors", "F32, F16, BF16, F64")]
    formats += [(f"`quant_method` `{name}`", kinds) for name, kinds in READABLE.items()]
    formats += [("GGUF", f"all kinds of llama.cpp's `gguf` package; kept quantised: {kept}")]
    return "\n".join(
        "".join(f"| {left} | {right} |\n" for left, right in rows) for rows in (families, formats)
    )


def with_tables(page: str) -> str:
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{tables()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
