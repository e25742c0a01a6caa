#!/usr/bin/env bash
# What every job needs first: the locked environment, and namespaces for the sandbox of code items where the kernel refuses them.
# .github/scripts/setup.sh [cpu|cuda]
set -euo pipefail
cd "$(dirname "$0")/../.."
make setup TORCH="${1:-cpu}"
if [ "$(sysctl -n kernel.apparmor_restrict_unprivileged_userns 2>/dev/null || echo 0)" = 1 ]; then
  sudo -n sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 \
    || echo "the kernel refuses user namespaces: code items will count as not measurable here" >&2
fi
