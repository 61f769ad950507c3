#!/bin/sh
# Run where an image is built, with the words of deploy/image_packages.py: fills the environment with packages and
# lists them, for those who look for known weaknesses. The project itself is where it will be copied to. By uv,
# which takes a fifth of pip's time, or by INSTALLER.
set -eu
tools=$(mktemp -d)
pip=${INSTALLER:-pip}
$pip install --quiet --no-compile --target "$tools" --constraint requirements.lock uv
uv="$tools/bin/uv pip"
$uv install --quiet --target "$tools" --constraint requirements.lock cyclonedx-python-lib
installer=${INSTALLER:-$uv}
export VIRTUAL_ENV=/opt/inflight/venv UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
python deploy/image_packages.py "$tools" "$@"
$installer install --constraint "$tools/constraints.txt" --requirement "$tools/requirements.txt"
# What builds it is constrained, too: pip knows that by this variable alone.
PIP_CONSTRAINT=$tools/constraints.txt UV_BUILD_CONSTRAINT=$tools/constraints.txt \
    $installer install --no-deps --editable .
PYTHONPATH=$tools python deploy/sbom.py /opt/inflight/venv/lib/python3*/site-packages /opt/inflight/sbom.cdx.json
rm -r "$tools"
