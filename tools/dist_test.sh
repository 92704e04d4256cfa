#!/usr/bin/env bash
# Evaluates on several GPUs of one or more machines. tools/torchrun.sh says which variables it reads.
#
#   tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py]
set -euo pipefail
[ $# -ge 3 ] || { echo "usage: $0 CONFIG CHECKPOINT GPUS [options of test.py]" >&2; exit 2; }
config=$1 checkpoint=$2 gpus=$3
shift 3
exec "$(dirname "$0")/torchrun.sh" "$gpus" "$(dirname "$0")/test.py" "$config" "$checkpoint" --launcher pytorch "$@"
