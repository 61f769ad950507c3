"""`inflight backup`, `restore` and `downgrade`, as an operator calls them."""

from __future__ import annotations

import shutil
from pathlib import Path

from typer.testing import CliRunner, Result

from launcher.commands.main import app
from router.store.backup_signature import SIGNATURE_BYTES
from router.store.migrate import revisions


def inflight(data_dir: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--data-dir", str(data_dir)])


def test_a_store_is_backed_up_restored_elsewhere_and_brought_down(tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "store.backup"
    assert inflight(here, "tenants", "create", "acme").exit_code == 0
    made = inflight(here, "backup", str(file))
    assert made.exit_code == 0, made.output
    assert f"schema {revisions()[-1]}" in made.stdout
    refused = inflight(there, "restore", str(file))
    assert refused.exit_code == 2
    assert "created with another pepper: use the pepper file of that time" in refused.stderr
    shutil.copy(here / "pepper", there / "pepper")
    done = inflight(there, "restore", str(file))
    assert done.exit_code == 0, done.output
    assert ", made 20" in done.stdout
    assert "acme" in inflight(there, "tenants", "list").stdout
    assert "--replace" in inflight(there, "restore", str(file)).stderr
    assert inflight(there, "restore", str(file), "--replace").exit_code == 0
    down = inflight(there, "downgrade", "--to", revisions()[-2], "--yes")
    assert f"had schema {revisions()[-1]} and has {revisions()[-2]}" in down.stdout
    assert "there is no schema 0" in inflight(there, "downgrade", "--to", "0", "--yes").stderr
    assert "acme" in inflight(there, "tenants", "list").stdout


def test_a_backup_without_a_signature_needs_a_word_that_says_so(tmp_path: Path) -> None:
    """As 0.8.0 wrote it, or somebody who has cut the signature off."""
    here, file = tmp_path / "here", tmp_path / "store.backup"
    assert inflight(here, "tenants", "create", "acme").exit_code == 0
    assert inflight(here, "backup", str(file)).exit_code == 0
    file.write_bytes(file.read_bytes()[:-SIGNATURE_BYTES])
    refused = inflight(here, "restore", str(file), "--replace")
    assert refused.exit_code == 2
    assert "is not signed" in refused.stderr
    assert "--unsigned restores it" in refused.stderr
    done = inflight(here, "restore", str(file), "--replace", "--unsigned")
    assert done.exit_code == 0, done.output
