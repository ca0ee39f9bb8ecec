#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# TaskProlog, as the job's user, before each task: names the job's daemon to the trainer. Out: lines that slurmstepd obeys.
set -u
. "$(dirname "$(realpath "$0")")/settings.sh"

if [ -S "$job/pinfeed.sock" ]; then
  echo "export PINFEED_ADDRESS=$job/pinfeed.sock"
elif [ -e "$job.log" ]; then
  echo "print pinfeed: no daemon for this job on $SLURMD_NODENAME: $(tail -n 1 "$job.log")"
fi
