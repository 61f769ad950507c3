#!/bin/sh
# The `inflight` command of an unpacked bundle; the first call makes its environment.
here=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd) || exit
[ -x "$here/.venv/bin/python" ] || "$here/install" || exit
exec "$here/.venv/bin/inflight" "$@"
