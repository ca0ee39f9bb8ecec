#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Epilog of slurmd, as root, once a node and job, however the job ended: stops the daemon that prolog.sh started and removes its files.
# Exit status 0 in any case, since another would take the node out of service.
set -u
. "$(dirname "$(realpath "$0")")/settings.sh"

[ -e "$job.log" ] || exit 0
# Whether it ended, within so many seconds.
ended() { flock --exclusive --timeout "$1" "$job.lock" true; }
if [ -e "$job.pid" ] && ! ended 0; then
  # The trainers are gone by now, so there is nobody to wait for. Signals are sent with the user's rights, not root's.
  stop() { setpriv --reuid "$SLURM_JOB_UID" --clear-groups bash -c "kill -$1 $(cat "$job.pid")"; }
  stop TERM
  ended 20 || stop KILL
  ended 5 || echo "pinfeed: the daemon of job $SLURM_JOB_ID does not end" >&2
fi
rm -rf "$job" "$job.log" "$job.lock" "$job.pid" "$job.ready"
exit 0
