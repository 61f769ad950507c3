"""The console's files: what is served, how, and that they are what they are said to be."""

from __future__ import annotations

import gzip
import json
import re
from hashlib import sha256

from deploy.vendor_console import MANIFEST, PACKAGES, VENDOR
from router.console.pages import STATIC, static_files
from tests.router.running import RunningRouter

MOST_BYTES = 300_000


async def test_the_page_loads_only_its_own_files_and_they_stay_in_the_cache_for_good(
    router: RunningRouter,
) -> None:
    page = await router.http.get("/ui")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) >= 5
    for path in named:
        file = await router.http.get(path)
        assert file.status_code == 200, path
        assert "immutable" in file.headers["cache-control"]
        assert file.headers["x-content-type-options"] == "nosniff"


async def test_no_inline_script_no_foreign_source_and_no_markup_from_text_is_allowed(
    router: RunningRouter,
) -> None:
    page = await router.http.get("/ui")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", page.text)


async def test_files_of_another_version_and_paths_beside_them_are_not_found(router: RunningRouter) -> None:
    digest, _ = static_files()
    for path in (
        "0000000000000000/main.js",
        f"{digest}/nothing.js",
        f"{digest}/../pages.py",
        f"{digest}/types.d.ts",
    ):
        assert (await router.http.get(f"/ui/{path}")).status_code == 404


async def test_files_are_packed_for_those_who_take_that(router: RunningRouter) -> None:
    digest, files = static_files()
    path = f"/ui/{digest}/main.js"
    packed = await router.http.get(path, headers={"accept-encoding": "gzip"})
    plain = await router.http.get(path, headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content == gzip.decompress(files["main.js"].packed)


def test_all_files_together_are_small() -> None:
    _, files = static_files()
    assert sum(len(each.packed) for each in files.values()) < MOST_BYTES


def test_no_file_of_the_console_turns_text_into_markup_or_code() -> None:
    for path in sorted(STATIC.rglob("*.js")):
        if path.parent != VENDOR:
            text = path.read_text()
            found = re.findall(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
            )
            assert not found, f"{path.name}: {found}"


def test_what_is_of_others_is_as_it_was_fetched_with_its_licence() -> None:
    known = json.loads((VENDOR / MANIFEST).read_text())
    assert {name: each["version"] for name, each in known.items()} == {
        package.name: package.version for package in PACKAGES
    }
    for name, package in known.items():
        assert f"{name}.LICENSE.txt" in package["sha256"]
        for file, digest in package["sha256"].items():
            assert sha256((VENDOR / file).read_bytes()).hexdigest() == digest, file
