# SPDX-License-Identifier: Apache-2.0
# Debian's archive for the scripts beside this one, which source it: source packages, and the newest version of each package. The
# machine's own apt configuration is read, not changed. In: $work, a folder. Out: fetch_source, newest_version.
apt_folder=$work/apt

die() {
  echo "wheel: $*" >&2
  exit 1
}

from_archive() { # COMMAND [ARGUMENT ...], with the lists of this folder in place of the machine's
  local command=$1
  shift
  "$command" -qq -o Dir::Etc::SourceList="$apt_folder/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State::Lists="$apt_folder/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root "$@"
}

update_archive() {
  local archives
  mkdir -p "$apt_folder/lists/partial"
  archives=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) main' 'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u)
  [ -n "$archives" ] || die "this machine's apt sources name no Debian archive; run apt-get update"
  printf '%s\n' "$archives" | sed 's/.*/deb &\ndeb-src &/' >"$apt_folder/sources.list"
  from_archive apt-get update
}

release() { (. /etc/os-release && echo "$VERSION_CODENAME"); }

newest_version() { from_archive apt-cache policy "$1" | sed -n 's/^ *Candidate: //p'; } # PACKAGE

fetch_source() { # SOURCE: unpacks its newest version, with Debian's patches, as ./SOURCE; apt has checked it against the signed index
  local name=$1 description
  rm -rf "$name"
  # What a point release has taken over may be gone from the archive of security updates, whose index still has it.
  from_archive apt-get source --download-only "$name" >/dev/null 2>&1 || from_archive apt-get source --download-only "$name/$(release)" >/dev/null ||
    die "fetching the source of $name failed"
  description=$(ls -t "${name}"_*.dsc | head -1)
  grep -qxF "Version: $(source_version "$name")" "$description" || die "$description is not the newest version of $name"
  dpkg-source --no-check --extract "$description" "$name" >/dev/null || die "unpacking $description failed"
}

source_version() { from_archive apt-cache showsrc --only-source "$1" | sed -n 's/^Version: //p' | sort -V | tail -1; } # SOURCE
