"""deploy/compose/setup.sh: the one command before `docker compose up`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.compose_file import EXAMPLE, ROOT, compose
from router.tenants import keys

# By others, and to be written into by the user.
GIVEN = {"aws_credentials", "hf_token"}
SCRIPT = ROOT / "deploy" / "compose" / "setup.sh"


def run(folder: Path) -> str:
    done = subprocess.run(["sh", SCRIPT, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SCRIPT.parent, tmp_path / "deploy" / "compose", ignore=shutil.ignore_patterns("secrets"))
    return tmp_path


def test_setup_creates_exactly_the_secrets_that_compose_names(folder: Path) -> None:
    run(folder)
    named = {Path(secret["file"]).as_posix() for secret in compose()["secrets"].values()}
    made = {path.relative_to(folder).as_posix() for path in folder.glob("deploy/compose/secrets/*")}
    assert made == named
    assert (folder / ".env").read_text() == EXAMPLE.read_text()


def test_secrets_fit_together_and_are_valid_for_their_programs(folder: Path) -> None:
    run(folder)
    at = folder / "deploy" / "compose" / "secrets"
    text = {path.name: path.read_text() for path in at.iterdir() if path.name not in {"pepper", *GIVEN}}
    assert all((at / name).read_text() == "" for name in GIVEN)
    assert text["store_url"] == f"postgresql://inflight:{text['postgres_password']}@postgres:5432/inflight"
    assert text["redis_url"] == f"redis://:{text['redis_password']}@redis:6379/0"
    assert hashlib.sha256(text["redis_password"].encode()).hexdigest() in text["redis_acl"]
    assert keys.prefix_of(text["admin_key"])
    assert keys.prefix_of(text["metrics_key"])
    assert keys.prefix_of(text["loadtest_key"])
    assert len(keys.load_pepper(at / "pepper")) == 32
    assert len({text[name] for name in text}) == len(text)
    assert all(re.fullmatch(r"[A-Za-z0-9]{24,}", text[name]) for name in text if "password" in name)


def test_secrets_are_labelled_for_containers_where_there_is_selinux(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of these names stand in for those of such a host: one answers, one says what it was told."""
    programs = tmp_path_factory.mktemp("programs")
    for name, text in (("selinuxenabled", "exit 0"), ("chcon", 'echo "chcon $*"')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    assert "chcon" not in run(folder)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert "chcon -R -t container_file_t -l s0 deploy/compose/secrets\n" in run(folder)


def test_files_of_a_private_checkout_can_be_read_by_containers(folder: Path) -> None:
    settings = folder / "deploy" / "compose" / "inflight.toml"
    settings.chmod(0o600)
    run(folder)
    assert settings.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "earlier", ["user default on #0 ~* &* +@all\n", "user default on #0 ~inflight:* -@all +set\n"]
)
def test_the_user_of_routers_in_redis_may_do_what_they_do_and_no_more(folder: Path, earlier: str) -> None:
    acl_file = folder / "deploy" / "compose" / "secrets" / "redis_acl"
    run(folder)
    acl_file.chmod(0o644)
    acl_file.write_text(earlier)
    run(folder)
    words = set(acl_file.read_text().split())
    assert {"resetchannels", "~inflight:*", "-@all"} <= words
    granted = {word[1:] for word in words if word.startswith("+")}
    usage = "auth del hello mget pexpire ping sadd select set smembers srem"
    answers = "exists xadd xrange xread xrevrange"
    assert granted == {*usage.split(), *answers.split()}


def test_the_secrets_folder_is_private_and_containers_can_read_the_files(folder: Path) -> None:
    run(folder)
    at = folder / "deploy" / "compose" / "secrets"
    assert at.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in at.iterdir()} == {0o444}


def test_a_second_setup_keeps_existing_secrets_and_creates_missing_ones(folder: Path) -> None:
    run(folder)
    at = folder / "deploy" / "compose" / "secrets"
    before = {path.name: path.read_bytes() for path in at.iterdir()}
    (at / "grafana_password").unlink()
    (folder / ".env").write_text("COMPOSE_PROFILES=cpu\n")
    said = run(folder)
    assert re.findall(r"made \S+/(\w+)", said) == ["grafana_password"]
    after = {path.name: path.read_bytes() for path in at.iterdir()}
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} == {"grafana_password"}
    assert (folder / ".env").read_text() == "COMPOSE_PROFILES=cpu\n"


def test_two_deployments_share_no_secret(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    shutil.copytree(folder, other, dirs_exist_ok=True)
    for each in (folder, other):
        run(each)
    for path in (folder / "deploy/compose/secrets").iterdir():
        assert (
            path.name in GIVEN
            or path.read_bytes() != (other / "deploy/compose/secrets" / path.name).read_bytes()
        )


def test_created_secrets_are_kept_out_of_git_and_images() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/.env", "/deploy/compose/secrets/"} <= set(ignored)
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*", "nothing that is not named is sent"


def fits(at: Path) -> bool:
    """Whether the hash that Prometheus is given is that of the password."""
    found = re.fullmatch(
        r"basic_auth_users:\n  inflight: '(\$2b\$10\$.{53})'\n", (at / "prometheus_web").read_text()
    )
    assert found
    again = ["perl", "-e", "chomp(my $p = <STDIN>); print crypt($p, $ARGV[0])", found[1]]
    password = (at / "prometheus_password").read_bytes()
    return subprocess.run(again, input=password, capture_output=True, check=True).stdout.decode() == found[1]


def test_a_new_password_of_prometheus_brings_a_new_hash(folder: Path) -> None:
    at = folder / "deploy" / "compose" / "secrets"
    run(folder)
    assert fits(at)
    (at / "prometheus_password").unlink()
    assert re.findall(r"made \S+/(\w+)", run(folder)) == ["prometheus_password", "prometheus_web"]
    assert fits(at)


def test_without_a_perl_that_knows_bcrypt_docker_is_asked_and_no_hash_is_made_up(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, whose crypt knows DES alone; a program stands in for Docker's."""
    at = folder / "deploy" / "compose" / "secrets"
    perl, programs = shutil.which("perl"), tmp_path_factory.mktemp("programs")
    asks = f'#!/bin/sh\nwhile [ "$1" != perl ]; do shift; done\nshift\nexec {perl} "$@"\n'
    for name, text in (("perl", "#!/bin/sh\necho abJnggxhB/yWI\n"), ("docker", asks)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    run(folder)
    monkeypatch.undo()
    assert fits(at)
    (at / "prometheus_web").unlink()
    (programs / "docker").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    refused = subprocess.run(["sh", SCRIPT, folder], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "no bcrypt of prometheus_password: install perl, or start Docker" in refused.stderr
    assert not (at / "prometheus_web").exists()
