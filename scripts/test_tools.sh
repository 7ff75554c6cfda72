#!/bin/sh
# Installs the programs beside Python that tests need (tests/needs.py), from Debian's packages; nothing where all are
# here. PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin # where servers are; an ordinary user's PATH may be without
packages=$("${PYTHON:-python3}" tests/needs.py | tr '\n' ' ')
[ -n "$packages" ] || exit 0
if ! command -v apt-get >/dev/null; then
    echo "There is no apt-get here. Install what these packages of Debian's have: $packages" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "Packages to install: $packages" >&2
    echo "That takes root: run  sudo scripts/test_tools.sh  and then  make test-tools  again" >&2
    exit 1
fi
# Tests start the servers that they need: none of them becomes a service of this machine.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
fi
apt-get update
# Its names are split at spaces: shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $packages
