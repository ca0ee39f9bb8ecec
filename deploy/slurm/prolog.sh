#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prolog of slurmd, as root, once a node and job: starts a daemon of the job's user, if the job asked for one. It reads what that user can
# read, serves that user alone, and ends with the job (epilog.sh). In: Slurm's environment. Out: $job/pinfeed.sock, ready.
# Exit status 0 in any case, since another would take the node out of service; the task prolog tells the job what went wrong.
set -u
. "$(dirname "$(realpath "$0")")/settings.sh"

tr -c 'A-Za-z0-9_.\n-' '\n' <<<"${SLURM_JOB_CONSTRAINTS-}" | grep -qx -- "$feature" || exit 0
mkdir -p -m 0755 "$jobs"
exec >"$job.log" 2>&1
chmod 0600 "$job.log" && chown "$SLURM_JOB_UID" "$job.log" # it names private files
group=$(id -g "$SLURM_JOB_UID") && install -d -o "$SLURM_JOB_UID" -g "$group" -m 0700 "$job" && mkfifo -m 0600 "$job.ready" || exit 0
settings=(--socket-dir "$job" --socket-mode 0600 --allowed-roots / --http-listen off)
[ ! -e "$config" ] || settings=(--config "$config" "${settings[@]}")
# No more of the node than the job has. Of "4(x2),2" CPUs on its nodes the least: a prolog is not told which node is which.
[ -n "${SLURM_JOB_GPUS-}" ] || settings+=(--gpus off)
cpus=$(tr , '\n' <<<"${SLURM_JOB_CPUS_PER_NODE-}" | sed 's/(.*//' | sort -n | head -n 1)
[ -z "$cpus" ] || settings+=(--workers "$cpus")

# The daemon inherits descriptor 9 and with it the lock, for as long as it lives: by that the epilog knows that the number in the file is
# still its. A session of its own, since slurmd ends what is left of the prolog's.
(
  flock --exclusive 9
  exec setsid setpriv --reuid "$SLURM_JOB_UID" --regid "$group" --init-groups --inh-caps=-all --no-new-privs \
    env -i PATH="$PATH" CUDA_VISIBLE_DEVICES="${SLURM_JOB_GPUS-}" "$daemon" "${settings[@]}" --ready-fd 8
) 8>"$job.ready" 9>"$job.lock" </dev/null &
echo $! >"$job.pid"
# The line comes when clients can connect; the end of the file, when the daemon could not start: its log has said why.
read -r -t 120 <"$job.ready" || [ -s "$job.log" ] || echo "pinfeed: the daemon of job $SLURM_JOB_ID is not ready"
rm -f "$job.ready"
exit 0
