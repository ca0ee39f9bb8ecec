#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deploy/slurm on a real Slurm: a controller and two nodes on this machine, on loopback, with a key and ports of their own. In: the build's
# directory. Out: a line for each thing that holds. Needs root: slurmd starts prologs and jobs as other users.
#
#   tests/packaging/slurm/run.sh build/release
set -euo pipefail
# In a PID namespace of its own, with which everything ends that was started here.
if [ "${1-}" != --inside ]; then exec unshare --mount --mount-proc --pid --fork --kill-child "$0" --inside "$@"; fi
shift
here=$(realpath "$(dirname "$0")")
source=$(realpath "$here/../../..")
scratch=$(mktemp -d)
user=nobody

fail() {
  echo "$name: FAILED: $*" >&2
  tail -n 15 "$scratch"/*.log "$scratch"/jobs/*.log "$scratch"/*.out >&2 2>/dev/null || true
  exit 1
}
name=slurm
. "$here/../../support/steps.sh"
[ $# -eq 1 ] || { echo "usage: $0 BUILD_DIRECTORY" >&2 && exit 2; }
[ "$(id -u)" -eq 0 ] || fail "needs root, to start jobs of other users"
build=$(realpath "$1")
finish() {
  kill -KILL -1 || true # everyone in this PID namespace but this script; files are removed once nobody writes any
  wait 2>/dev/null
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM

# 1. What nodes have: the daemon, the client, the scripts with settings for this place; and what the user reads.
chmod 755 "$scratch"
mkdir -p "$scratch"/{etc,python,jobs,state,spool,data}
cp "$build/server/pinfeedd" "$build/client/cli/pinfeed" "$scratch"
cp -P "$build"/client/libpinfeed.so* "$scratch"
cp -r "$source/client/python/pinfeed" "$scratch/python"
cp "$source"/deploy/slurm/*.sh "$scratch/etc"
sed -i "s|^daemon=.*|daemon=$scratch/pinfeedd|; s|^jobs=.*|jobs=$scratch/jobs|; s|^config=.*|config=$scratch/job.toml|" "$scratch/etc/settings.sh"
echo 'pool_bytes = "64MiB"' >"$scratch/job.toml"
/usr/bin/python3 -c 'import numpy, sys; numpy.save(sys.argv[1], numpy.arange(1000))' "$scratch/data/x.npy"
# A private copy of what the daemon must read by the user's rights, and by no others.
cp -r "$scratch/data" "$scratch/private" && chown -R $user "$scratch/private" && chmod 0700 "$scratch/private"
cat >"$scratch/read.py" <<'END'
"""Reads its shard, writes whose and which samples it was; then, if asked to, goes on reading."""
import os
import sys

import pinfeed

with pinfeed.open(sys.argv[1], batch_size=10, framework="numpy", drop_last=False) as feed:
    rows = [int(row) for batch in feed for row in batch.x]
    with open(f"{sys.argv[2]}.{os.environ['SLURM_PROCID']}", "w") as file:
        print(os.environ["PINFEED_ADDRESS"], feed.rank_source, *rows, file=file)
    while len(sys.argv) > 3:
        for batch in feed:
            pass
END
mkdir -m 0777 "$scratch/out"

# 2. The cluster.
dd if=/dev/urandom of="$scratch/munge.key" bs=128 count=1 status=none
chmod 0400 "$scratch/munge.key"
install -d -m 0755 "$scratch/munge"
munged --foreground --force --key-file "$scratch/munge.key" --socket "$scratch/munge/socket" --pid-file "$scratch/munge/pid" \
  --log-file "$scratch/munge.log" --seed-file "$scratch/munge/seed" --num-threads 2 >"$scratch/munged.log" 2>&1 &
read -r control one two < <(/usr/bin/python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(each.getsockname()[1] for each in held))')
cat >"$scratch/slurm.conf" <<END
ClusterName=pinfeed
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$control
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge/socket
CredType=cred/munge
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool/%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=2
NodeName=one,two NodeAddr=127.0.0.1 NodeHostname=$(hostname -s) Port=$one,$two CPUs=2 RealMemory=500 Feature=pinfeed
PartitionName=all Nodes=one,two Default=YES MaxTime=5
$(grep -v '^#' "$source/deploy/slurm/slurm.conf" | sed "s|/etc/slurm/pinfeed|$scratch/etc|")
END
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$scratch/cgroup.conf"
export SLURM_CONF=$scratch/slurm.conf
await test -S "$scratch/munge/socket"
slurmctld -D -f "$SLURM_CONF" >"$scratch/slurmctld.log" 2>&1 &
for node in one two; do
  slurmd -D -N $node -f "$SLURM_CONF" >"$scratch/slurmd.$node.log" 2>&1 &
done
await sh -c '[ "$(sinfo --noheader --Node --format=%T | sort -u)" = idle ]'
holds "two nodes are idle"

# As the user, in a folder that the user may enter.
submit() {
  (cd "$scratch/out" && setpriv --reuid $user --regid nogroup --clear-groups env PYTHONPATH="$scratch/python" PINFEED_LIBRARY="$scratch/libpinfeed.so.0" "$@")
}
daemons() { pgrep -f "^$scratch/pinfeedd "; }
is_left() { daemons || ls "$scratch/jobs" | grep . || squeue --noheader | grep .; }
nothing_left() {
  await eval '! is_left'
  [ "$(sinfo --noheader --Node --format=%T | sort -u)" = idle ] || fail "a node was taken out of service: $(sinfo --Node --long)"
}

# 3. A job with a task on each node reads each its shard, of files that only its user can read.
submit timeout 120 srun --nodes 2 --ntasks 2 --constraint pinfeed /usr/bin/python3 "$scratch/read.py" "$scratch/private" "$scratch/out/rows" >"$scratch/srun.out" 2>&1 ||
  fail "srun: $(cat "$scratch/srun.out")"
/usr/bin/python3 - "$scratch/out/rows" <<'END' || fail "the shards"
import sys

tasks = [open(f"{sys.argv[1]}.{task}").read().split() for task in range(2)]
rows = [set(map(int, words[2:])) for words in tasks]
assert [words[1] for words in tasks] == ["SLURM_PROCID/SLURM_NTASKS"] * 2, tasks
assert tasks[0][0] != tasks[1][0], "both used one daemon"
assert not rows[0] & rows[1] and rows[0] | rows[1] == set(range(1000)) and len(rows[0]) == len(rows[1]) == 500
END
nothing_left
holds "a job on two nodes reads its two shards from two daemons of its user; afterwards nothing is left"

# 4. Cancelled in the middle of its epoch: the same.
running() { [ -e "$scratch/out/long.0" ] && [ -e "$scratch/out/long.1" ]; }
printf '#!/bin/sh\nsrun /usr/bin/python3 %s/read.py %s/data %s/out/long more\n' "$scratch" "$scratch" "$scratch" >"$scratch/long.sh"
job=$(submit sbatch --parsable --nodes 2 --ntasks 2 --constraint pinfeed "$scratch/long.sh")
await running
[ "$(daemons | wc -l)" -eq 2 ] || fail "the running job has $(daemons | wc -l) daemons"
[ "$(pgrep -fc "^$scratch/pinfeedd .*--workers 1 ")" -eq 2 ] || fail "the daemons have other CPUs than the job: $(pgrep -fa "^$scratch/pinfeedd ")"
[ "$(stat -c '%U %a' "$scratch/jobs/"*.log | sort -u)" = "$user 600" ] || fail "others may read the log: $(ls -l "$scratch/jobs")"
scancel "$job"
nothing_left
holds "each daemon has the job's CPUs and a log of its own; a job that is cancelled while it reads leaves nothing either"

# 5. A daemon that does not end by itself is ended.
job=$(submit sbatch --parsable --nodes 1 --constraint pinfeed --wrap "touch $scratch/out/sleeps && sleep 300")
await test -e "$scratch/out/sleeps"
kill -STOP "$(daemons)"
scancel "$job"
nothing_left
holds "nor does a job whose daemon hangs"

# 6. Who does not ask for a daemon gets none, and neither words nor errors about it.
submit srun --nodes 1 sh -c 'echo "${PINFEED_ADDRESS-none}"' >"$scratch/srun.out" 2>&1 && [ "$(cat "$scratch/srun.out")" = none ] ||
  fail "a job without the feature: $(cat "$scratch/srun.out")"
holds "a job that does not ask for a daemon has none"

# 7. A daemon that cannot start is told to the job, and the nodes stay in service.
echo 'pool_bytes = "much"' >"$scratch/job.toml"
submit srun --nodes 1 --constraint pinfeed true >"$scratch/srun.out" 2>&1 || fail "a job without its daemon: $(cat "$scratch/srun.out")"
grep -q 'pinfeed: no daemon for this job on [a-z]*: .*pool_bytes' "$scratch/srun.out" || fail "the job is told: $(cat "$scratch/srun.out")"
nothing_left
holds "a daemon that cannot start is told to the job"
