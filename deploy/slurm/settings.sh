# SPDX-License-Identifier: Apache-2.0
# What prolog, task prolog and epilog share; they read it from their own folder, where only root may write.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
daemon=/usr/bin/pinfeedd
# Below it, for each job of this node, a folder of the job's user with the sockets; beside that the daemon's log and a lock.
jobs=/run/pinfeed-jobs
# The feature by which a job asks for a daemon: --constraint=pinfeed, with Feature=pinfeed on the nodes.
feature=pinfeed
# Read by each daemon if it is there: pool_bytes above all, since several jobs may share a node.
config=/etc/pinfeed/job.toml

# SLURMD_NODENAME: several slurmd may share a machine.
job=$jobs/${SLURM_JOB_ID:?is set by Slurm}.${SLURMD_NODENAME:?is set by Slurm}
