#!/bin/sh
# Run where an image is built, with the words of deploy/image_packages.py: fills the environment with packages and
# lists them, for those who look for known weaknesses. The project itself is where it will be copied to.
set -eu
installer=${INSTALLER:-/opt/tools/bin/uv pip}
export VIRTUAL_ENV=/opt/inflight/venv UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
wanted=$(mktemp -d)
python deploy/image_packages.py "$wanted" "$@"
$installer install --constraint "$wanted/constraints.txt" --requirement "$wanted/requirements.txt"
# What builds it is constrained, too: pip knows that by this variable alone.
PIP_CONSTRAINT=$wanted/constraints.txt UV_BUILD_CONSTRAINT=$wanted/constraints.txt \
    $installer install --no-deps --editable .
PYTHONPATH=/opt/tools python deploy/sbom.py /opt/inflight/venv/lib/python3*/site-packages \
    /opt/inflight/sbom.cdx.json
rm -r "$wanted"
