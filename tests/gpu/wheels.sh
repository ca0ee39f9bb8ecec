#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Brings the loaders that peers.py compares with to a machine that has a GPU and no network, in parts small enough to be carried one by one.
#
#   wheels.sh fetch FOLDER           here: downloads them and packs FOLDER/part-00, part-01, ... and FOLDER/sum
#   wheels.sh install FOLDER KEPT    there: moves the parts of FOLDER that have come into KEPT; once all are there, installs into KEPT/site
#
# That machine has Python 3.12, PyTorch and torchvision. PYTHON names a Python 3.12 with pip, here. `install` says what is missing and then exits with
# status 3. With KEPT/site in PEERS_SITE, peers.py finds them. FFCV has no wheel.
set -eu -o pipefail
part_bytes=36000000
wheels=(
  nvidia-dali-cuda130==2.4.0 nvidia-nvimgcodec-cu13==0.9.0.20 nvidia-nvjpeg==13.3.2.43 # of CUDA 13
  astunparse==1.6.3 gast==0.7.0 optree==0.20.0 nvtx==0.2.17 makefun==1.16.0 libcst==1.9.0 # what DALI imports
  spdl==0.8.0 spdl-core==0.8.0 spdl-io==0.8.0
  av==19.0.2 # for its FFmpeg, which SPDL loads
  webdataset==1.0.2 braceexpand==0.1.7 pyyaml==6.0.4
)
# Other Pythons' modules, sources, and codecs that are not used here.
left_out=(
  'backend_impl.cpython-3[!1]*' 'backend_impl.cpython-31[!2]*' 'python_function_plugin.cpython-31[!2]*' 'nvimgcodec_impl.cpython-39*'
  'nvimgcodec_impl.cpython-31[!2]*' 'libopencv_ext*' 'libnvtiff_ext*' 'libtiff_ext*' 'libnvjpeg2k_ext*' '*_spdl_ffmpeg[4-8]*' '*spdl_cuda*' '*libspdl_ffmpeg[4-8]*'
  include test tests '*.pyi' '*.h' '*.cc' '*.a'
)

fetch() {
  local folder=$1 site pattern library name options=(--no-deps --only-binary=:all: --python-version 3.12 --implementation cp)
  for platform in manylinux_2_{39,35,34,31,28,27,24,17}_x86_64 manylinux{2014,1}_x86_64; do options+=(--platform "$platform"); done
  mkdir -p "$folder"
  echo '*' > "$folder/.gitignore"
  site=$folder/site
  rm -rf "$site" "$folder"/part-* "$folder/sum"
  "${PYTHON:-python3}" -m pip install -q --no-compile --upgrade --target "$site" "${options[@]}" "${wheels[@]}"
  # FFmpeg by the names that SPDL asks for; what it needs itself has names of its own.
  mv "$site/av.libs" "$site/ffmpeg"
  rm -rf "${site:?}/av" "${site:?}/bin"
  for library in "$site"/ffmpeg/lib{av,sw}*.so.*; do
    name=$(basename "$library" | sed -E 's/-[0-9a-f]+\.so\.([0-9]+).*/.so.\1/')
    ln -s "$(basename "$library")" "$site/ffmpeg/$name"
  done
  for pattern in "${left_out[@]}"; do find "$site" -depth -name "$pattern" -exec rm -r {} +; done
  du -sh "$site"
  tar -C "$folder" --sort=name --owner=0 --group=0 -cf - site | xz -6 -T 2 | split -b "$part_bytes" -d - "$folder/part-"
  (cd "$folder" && sha256sum part-* > sum)
  rm -r "$site"
  ls -l "$folder"
}

install() {
  local folder=$1 kept=$2
  mkdir -p "$kept"
  echo '*' > "$kept/.gitignore"
  [ -d "$kept/site" ] && return
  for part in "$folder"/part-* "$folder/sum"; do
    if [ -e "$part" ]; then mv -f "$part" "$kept/"; fi
  done
  if [ ! -e "$kept/sum" ] || ! (cd "$kept" && sha256sum --check --quiet sum); then
    echo "wheels.sh: not yet all that $kept/sum names; here are:" "$(cd "$kept" && ls)"
    exit 3
  fi
  rm -rf "$kept/unfinished"
  mkdir "$kept/unfinished"
  cat "$kept"/part-* | tar -C "$kept/unfinished" -xJf -
  mv "$kept/unfinished/site" "$kept/site"
  rm "$kept"/part-*
  du -sh "$kept/site"
}

case "${1:-} $#" in
  "fetch 2" | "install 3") "$@" ;;
  *) sed -n '/^#   wheels/s/^#   //p' "$0"; exit 2 ;;
esac
