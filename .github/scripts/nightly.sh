#!/usr/bin/env bash
# One of the nightly jobs, after setup.sh: soak, drill, aa, power or rotation.
set -euo pipefail
cd "$(dirname "$0")/../.."
seatrial=.venv/bin/seatrial
python=.venv/bin/python
tier=$($python -c 'from pipeline.params import load_params; print(load_params().release.candidate)')

build() {
  $seatrial machine
  $python -m dvc repro "quantize@$tier"
}

case "${1:-}" in
  soak)
    build
    # Beside the trial's own results, which a run of another profile must not stand in for.
    $seatrial loadtest --tier "$tier" --profile soak --out reports/soak
    $python -m pipeline.checks.soak reports/soak
    ;;
  drill)
    build
    $seatrial drill
    ;;
  aa)
    build
    $seatrial drill --aa "${2:-1}"
    $seatrial drill --resample || echo "not drawn again, as said above" >&2
    cp pipeline/drill/aa.jsonl reports/drill/ # what is committed, to be looked at first
    cp pipeline/drill/resampled.json reports/drill/ 2>/dev/null || true
    ;;
  power)
    build
    $seatrial drill --power "${2:-1}" --slower prefill:10 --slower decode:10
    cp pipeline/drill/power.jsonl reports/drill/
    ;;
  rotation)
    $python -m pipeline.checks.rotation --week "$(date -u +%G-W%V)"
    ;;
  *)
    echo "usage: $0 soak | drill | aa [N] | power [N] | rotation" >&2
    exit 3
    ;;
esac
