#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The part of packages.sh inside the system. In: /packages/first and /packages/second, two revisions. Out: a line for each thing that holds.
set -euo pipefail

. "$(dirname "$0")/steps.sh"
name=packages
fail() {
  echo "packages: FAILED: $*" >&2
  systemctl --no-pager --full status pinfeedd >&2 || true
  journalctl --no-pager --unit pinfeedd --lines 40 >&2 || true
  exit 1
}
property() { systemctl show --property "$1" --value pinfeedd; }
install_packages() { apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends "$@" >/tmp/apt.log 2>&1 || fail "apt: $(tail -20 /tmp/apt.log)"; }
# Every file, and every line of the users' files: what a purge must not change.
snapshot() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /packages -o -path /srv -o -path /root -o -path /home \
    -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /var/lib/systemd/catalog -o -name __pycache__ \
    -o -path '/etc/*-' \) -prune -o -print | sort
  find /run -name '*pinfeed*' | sort
  sed 's/^/passwd: /' /etc/passwd /etc/group /etc/shadow /etc/gshadow | sort
}

for user in member stranger; do useradd --create-home "$user"; done
mkdir /srv/rows
python3 -c 'import numpy; numpy.save("/srv/rows/x.npy", numpy.arange(4000).reshape(1000, 4))'
snapshot >/tmp/before

install_packages /packages/first/*.deb
[ "$(property ActiveState)" = active ] || fail "the service does not run after the installation"
systemctl is-enabled --quiet pinfeedd || fail "the service is not enabled"
case "$(property StatusText)" in serves*) ;; *) fail "its status is '$(property StatusText)'" ;; esac
[ "$(stat -c '%U %G %a' /run/pinfeed)" = "pinfeed pinfeed 750" ] || fail "/run/pinfeed: $(stat -c '%U %G %a' /run/pinfeed)"
pid=$(property MainPID)
grep -q '^NoNewPrivs:.1' "/proc/$pid/status" && grep -q '^Seccomp:.2' "/proc/$pid/status" && grep -q '^CapBnd:.0*$' "/proc/$pid/status" ||
  fail "the service has more rights than its unit says"
holds "installed: enabled, started, ready, as user $(ps -o user= -p "$pid" 2>/dev/null || stat -c %U "/proc/$pid")"

for each in docs/install.md docs/service.md docs/containers.md docs/runbook.md docs/configuration.md deploy/prometheus/alerts.yml deploy/grafana/pinfeed.json \
  deploy/kubernetes/base/daemonset.yaml deploy/kubernetes/example/trainer.yaml deploy/slurm/settings.sh; do
  [ -s "/usr/share/doc/pinfeed/$each" ] || fail "/usr/share/doc/pinfeed/$each is not there"
done
[ -x /usr/share/doc/pinfeed/deploy/slurm/prolog.sh ] || fail "Slurm could not run its prolog"
check=$(setpriv --reuid=pinfeed --regid=pinfeed --init-groups pinfeedd --config /etc/pinfeed/pinfeed.toml --check) || fail "--check"
[ "$check" = "OK: /etc/pinfeed/pinfeed.toml" ] || fail "--check said '$check'"
holds "documents, alerts, dashboard and the files for Slurm and Kubernetes are there; --check names its file"

pinfeed status >/dev/null || fail "root is not served"
runuser -u stranger -- pinfeed status >/dev/null 2>&1 && fail "a stranger is served"
usermod -aG pinfeed member
runuser -u member -- pinfeed status >/dev/null || fail "a member of the group is not served"
holds "members of the group are served, others are not"

sed -i 's|^# allowed_roots.*|allowed_roots = ["/srv"]|' /etc/pinfeed/pinfeed.toml
systemctl restart pinfeedd
cat >/srv/read.py <<'END'
import pinfeed
with pinfeed.open("/srv/rows", batch_size=10, framework="numpy") as feed:
    while True:
        for batch in feed:
            print(int(batch.x[0, 0]), flush=True)
END
mkfifo /srv/batches
runuser -u member -- env PINFEED_ADDRESS=/run/pinfeed/pinfeed.sock python3 /srv/read.py >/srv/batches 2>/srv/reader.log &
reader=$!
exec 5</srv/batches
next=0
# Reads $1 batches of the running trainer: each the one behind the last.
read_batches() {
  local i line
  for i in $(seq "$1"); do
    read -r -t 30 line <&5 || fail "the trainer got no batch: $(cat /srv/reader.log)"
    [ "$line" -eq "$next" ] || fail "the trainer got the batch that begins with $line, not $next"
    next=$(((next + 40) % 4000))
  done
}
read_batches 250
holds "a trainer reads, in Python, from the installed package"

install_packages /packages/second/*.deb
[ "$(property ActiveState)" = active ] && [ "$(property MainPID)" != "$pid" ] || fail "the service was not restarted by the upgrade"
[ "$(dpkg-query -W -f '${Version}' pinfeed)" != "$(dpkg-deb -f /packages/first/pinfeed_*.deb Version)" ] || fail "not upgraded"
grep -q '^allowed_roots = \["/srv"\]' /etc/pinfeed/pinfeed.toml || fail "the upgrade lost the settings"
read_batches 30000
holds "upgraded: restarted, settings kept, the trainer missed no batch"
kill "$reader"
wait "$reader" || true
exec 5<&-

systemctl disable --quiet --now pinfeedd
install_packages --reinstall /packages/first/pinfeed_*.deb --allow-downgrades
systemctl is-enabled --quiet pinfeedd && fail "a disabled service was enabled by an installation"
systemctl is-active --quiet pinfeedd && systemctl stop pinfeedd
holds "a disabled service stays disabled"

systemctl enable --quiet --now pinfeedd.socket pinfeedd-lifeline.socket
[ "$(property ActiveState)" = inactive ] || fail "the service runs before its first client"
pinfeed status >/dev/null || fail "no answer through the sockets of systemd"
[ "$(property ActiveState)" = active ] || fail "the first client did not start the service"
pinfeed bench /srv/rows --batch-size 10 --batches 50 >/dev/null || fail "no batches through the sockets of systemd"
systemctl disable --quiet --now pinfeedd.socket pinfeedd-lifeline.socket
systemctl stop pinfeedd
holds "started by its sockets at the first connection"

mkdir -p /run/systemd/system/pinfeedd.service.d
printf '[Service]\nWatchdogSec=2\n' >/run/systemd/system/pinfeedd.service.d/soon.conf
systemctl daemon-reload
systemctl start pinfeedd
pid=$(property MainPID)
sleep 5 # longer than the watchdog waits
[ "$(property MainPID)" = "$pid" ] || fail "the watchdog ended a daemon that is idle"
kill -STOP "$pid"
await sh -c "[ \$(systemctl show --property NRestarts --value pinfeedd) -ge 1 ] && systemctl is-active --quiet pinfeedd"
journalctl --unit pinfeedd | grep 'Watchdog timeout' >/dev/null || fail "it was restarted, but not by the watchdog"
rm -r /run/systemd/system/pinfeedd.service.d
systemctl daemon-reload
holds "the watchdog leaves an idle daemon alone and restarts a stopped one"

apt-get -qq -y -o Dpkg::Use-Pty=0 remove pinfeed >/dev/null 2>&1 || fail "remove"
[ "$(property ActiveState)" != active ] || fail "the service runs after its removal"
[ -e /etc/pinfeed/pinfeed.toml ] || fail "remove took the settings"
apt-get -qq -y -o Dpkg::Use-Pty=0 purge --autoremove pinfeed libpinfeed0 libpinfeed-dev python3-pinfeed >/tmp/apt.log 2>&1 || fail "purge: $(tail /tmp/apt.log)"
snapshot >/tmp/after
diff /tmp/before /tmp/after >&2 || fail "purge left or took something (> left, < taken)"
systemctl list-units --all 'pinfeed*' --no-legend | grep . && fail "systemd still knows a unit"
holds "removed and purged: nothing is left"
