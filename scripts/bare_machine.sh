#!/usr/bin/env bash
# Shows, where all that tests need is installed, what `make test` does without: as an ordinary account, with the programs
# of Debian's essential packages and make alone. Runs lint, and the tests that miss something.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/home"
essential=$(dpkg-query --show --showformat '${Package} ${Essential}\n' | sed -n 's/ yes$//p')
# Their names are split at spaces: shellcheck disable=SC2086
dpkg-query --listfiles $essential make | grep -E '^(/usr)?/s?bin/[^/]+$' | while read -r program; do
    ln -sf "$program" "$work/bin"
done
ordinary=()
if [ "$(id -u)" = 0 ]; then
    ordinary=(unshare --user --map-user=61234 --map-group=61234) # our files stay its own, and it can do no more
fi

bare() {
    "${ordinary[@]}" env --unset=CI PATH="$work/bin" HOME="$work/home" "$@"
}

bare make lint | tee "$work/lint"
grep --quiet "npm, which installs it, is missing" "$work/lint"
bare .venv/bin/python -m pytest --numprocesses 2 --dist loadfile -p no:cacheprovider \
    tests/etcd tests/attacks/test_other_account.py tests/process/test_{dashboard,metrics,run_pages,ssh,top}.py \
    tests/process/test_{exit_reasons,other_languages,runs}.py tests/rpc/test_dashboard_steering.py tests/unit/test_metrics.py |
    tee "$work/tests"
for missing in root "network namespaces" sshd Chromium Prometheus etcd tmux git "npm packages"; do
    grep --quiet " without $missing (" "$work/tests" || { echo "no test was skipped for want of $missing" >&2; exit 1; }
done
grep "make test-tools. installs .*chromium.*npm" "$work/tests" >/dev/null
