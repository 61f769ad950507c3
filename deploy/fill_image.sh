#!/bin/sh
# Run where an image is built, with the words of deploy/image_packages.py: fills the environment with packages and
# lists them, for those who look for known weaknesses. The project itself is where it will be copied to. By uv,
# which takes a fifth of pip's time, or by INSTALLER.
set -eu
lists=$(mktemp -d)
# They are the same for every image with the same lock and Python, and in the cache of builds.
tools=/root/.cache/inflight/$(cat requirements.lock "$(command -v python)" | sha256sum | cut -c 1-16)
if [ ! -d "$tools" ]; then
    mkdir -p /root/.cache/inflight
    new=$(mktemp -d -p /root/.cache/inflight)
    ${INSTALLER:-pip} install --quiet --no-compile --target "$new" --constraint requirements.lock uv
    "$new/bin/uv" pip install --quiet --target "$new" --constraint requirements.lock cyclonedx-python-lib
    mv -T "$new" "$tools" || rm -r "$new"  # another image may have been quicker
fi
installer=${INSTALLER:-$tools/bin/uv pip}
export VIRTUAL_ENV=/opt/inflight/venv UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
python deploy/image_packages.py "$lists" "$@"
$installer install --constraint "$lists/constraints.txt" --requirement "$lists/requirements.txt"
# What builds it is constrained, too: pip knows that by this variable alone.
PIP_CONSTRAINT=$lists/constraints.txt UV_BUILD_CONSTRAINT=$lists/constraints.txt \
    $installer install --no-deps --editable .
PYTHONPATH=$tools python deploy/sbom.py /opt/inflight/venv/lib/python3*/site-packages /opt/inflight/sbom.cdx.json
rm -r "$lists"
