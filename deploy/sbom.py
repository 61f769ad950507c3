"""What an image or a bundle is made of, as a CycloneDX list: packages, versions, licences, hashes."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import zipfile
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from email.message import Message

# Which Triton is inside by the version of nvidia-pytriton, whose metadata do not tell. Scanners use the CPE.
TRITON_IN = {"0.7.0": "2.51.0"}
_CPE = "cpe:2.3:a:nvidia:triton_inference_server:{}:*:*:*:*:*:*:*"
_LICENCE_CHARS = 100  # some put the whole text there


@dataclass(frozen=True, slots=True)
class Part:
    """One package; `sha256` is that of the file it came in, where that is known."""

    name: str
    version: str
    licence: str = ""
    sha256: str = ""

    @classmethod
    def of(cls, metadata: Message | Any, sha256: str = "") -> Part:
        licence = metadata.get("License-Expression") or metadata.get("License") or ""
        known = licence if len(licence) <= _LICENCE_CHARS and "\n" not in licence else ""
        return cls(metadata["Name"], metadata["Version"], known, sha256)


def metadata_of(wheel: Path) -> Message:
    """Its own: some, like setuptools, contain those of others."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return BytesParser().parsebytes(archive.read(min(names, key=lambda name: name.count("/"))))


def parts_of_wheels(wheels: Iterable[Path]) -> list[Part]:
    parts = []
    for wheel in wheels:
        parts.append(Part.of(metadata_of(wheel), hashlib.sha256(wheel.read_bytes()).hexdigest()))
    return parts


def installed_parts(site_packages: Path) -> list[Part]:
    found = importlib.metadata.distributions(path=[str(site_packages)])
    return [Part.of(each.metadata) for each in found if each.metadata["Name"] and each.metadata["Version"]]


def render(name: str, version: str, parts: Iterable[Part]) -> str:
    bom = Bom()
    whole = Component(name=name, version=version, type=ComponentType.APPLICATION, bom_ref=name)
    bom.metadata.component = whole
    licences = LicenseFactory()
    for part in parts:
        url = PackageURL("pypi", name=part.name.lower().replace("_", "-"), version=part.version)
        bom.components.add(
            Component(
                name=part.name,
                version=part.version,
                type=ComponentType.LIBRARY,
                purl=url,
                bom_ref=str(url),
                licenses=[licences.make_from_string(part.licence)] if part.licence else (),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else (),
            )
        )
        if part.name.replace("_", "-") == "nvidia-pytriton" and (triton := TRITON_IN.get(part.version)):
            bom.components.add(
                Component(
                    name="tritonserver",
                    version=triton,
                    type=ComponentType.APPLICATION,
                    cpe=_CPE.format(triton),
                    bom_ref="tritonserver",
                )
            )
    bom.register_dependency(whole, bom.components)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site_packages", type=Path, help="the folder whose packages are listed")
    parser.add_argument("into", type=Path, help="the file that is written")
    told = parser.parse_args()
    parts = installed_parts(told.site_packages)
    version = next((part.version for part in parts if part.name == "inflight"), "")
    told.into.write_text(render("inflight", version, parts), encoding="utf-8")
    print(f"{told.into}: {len(parts)} packages")


if __name__ == "__main__":
    main()
