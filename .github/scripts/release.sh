#!/usr/bin/env bash
# The trial of a release, after setup.sh: at least 30 minutes a stage, under the release policy, artifacts from and to a DVC remote.
# REMOTE is its address (empty: none). The exit code is the verdict: 0 ship, 1 hold, 2 undecided, 3 something is wrong.
set -euo pipefail
cd "$(dirname "$0")/../.."
dvc=".venv/bin/python -m dvc"
if [ -n "${REMOTE:-}" ]; then
  $dvc remote add --local --force --default store "$REMOTE"
fi
.venv/bin/python -m pipeline.checks.release_settings
code=0
.venv/bin/seatrial trial ${REMOTE:+--pull} || code=$?
if [ -n "${REMOTE:-}" ]; then
  $dvc push --run-cache
fi
exit "$code"
