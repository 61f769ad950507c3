"""Where this program's own files lie, told once."""

from __future__ import annotations

from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[1]
# Run as a script: what is started through it ends with whoever started it.
TETHER = PROJECT_ROOT / "launcher" / "stack" / "tether.py"
