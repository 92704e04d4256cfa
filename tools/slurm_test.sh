#!/usr/bin/env bash
# Evaluates on GPUS GPUs (default 8) under Slurm.
#
#   [GPUS=8 GPUS_PER_NODE=8 CPUS_PER_TASK=5 SRUN_ARGS=] tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [options of test.py]
set -euo pipefail
[ $# -ge 4 ] || { echo "usage: $0 PARTITION JOB_NAME CONFIG CHECKPOINT [options of test.py]" >&2; exit 2; }
partition=$1 job=$2 config=$3 checkpoint=$4
shift 4
gpus=${GPUS:-8}
per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}
# shellcheck disable=SC2086
exec srun --partition="$partition" --job-name="$job" --gres=gpu:"$per_node" \
  --ntasks="$gpus" --ntasks-per-node="$per_node" --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 \
  ${SRUN_ARGS:-} "${PYTHON:-python}" -u "$(dirname "$0")/test.py" "$config" "$checkpoint" --launcher slurm "$@"
