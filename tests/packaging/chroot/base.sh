#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A minimal Debian in a folder of its own, for the scripts beside this one, which source it. In: a cache; $suite, the release's name.
# Out: $root, removed at the end of the script unless $keep is true. Mirror and proxy are this machine's own.
own_suite=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
suite=bookworm
base_packages=ca-certificates,git,make # what it has besides Debian's required packages

die() {
  echo "chroot: $*" >&2
  exit 1
}

cleanup() {
  if ${keep-false}; then
    echo "chroot: kept $root"
  else
    rm -rf --one-file-system "$root"
  fi
}

make_root() {
  local cache=$1 started=$SECONDS sources mirror file
  command -v debootstrap >/dev/null || die "needs debootstrap: apt-get install debootstrap"
  # Debian's own archives as this machine reaches them, for $suite. A newcomer has no other sources. Every archive holds all releases.
  sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) main' 'Created-By: Packages' 'Origin: Debian' 'Component: main' |
    sort -u | sed "s/ $own_suite/ $suite/")
  mirror=$(printf '%s\n' "$sources" | awk -v suite="$suite" '$3 == suite { print $2; exit }')
  [ -n "$mirror" ] || die "this machine's apt sources name no Debian archive; run apt-get update, or use a Debian machine"

  local base=$cache/$suite.tar # a cache holds one base: users who want other packages have a cache of their own
  root=$(mktemp -d "$cache/root.XXXXXX")
  trap cleanup EXIT
  if [ -e "$base" ]; then
    tar -C "$root" -xpf "$base"
  else
    debootstrap --variant=minbase --include="$base_packages" "$suite" "$root" "$mirror" >"$cache/debootstrap.log" 2>&1 ||
      die "debootstrap failed: $(tail -3 "$cache/debootstrap.log")"
    rm -rf "$root"/var/cache/apt/archives/*.deb
    tar -C "$root" -cpf "$base.new" . && mv "$base.new" "$base"
  fi
  chmod 755 "$root" # mktemp's is for root alone; every user may enter a machine's /
  printf '%s\n' "$sources" >"$root/etc/apt/sources.list"
  apt-config dump Acquire | grep -E '^Acquire::(Check-|https?:|Retries|Force)' >"$root/etc/apt/apt.conf.d/90host" || true
  echo 'Binary::apt::APT::Keep-Downloaded-Packages "true";' >"$root/etc/apt/apt.conf.d/91keep"
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io" # a crash loses nothing that is wanted
  for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e $file ] || cp -L $file "$root$file"
  done
  echo "chroot: base system ready after $((SECONDS - started)) s"
}
