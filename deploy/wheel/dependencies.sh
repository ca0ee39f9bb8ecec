#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds static, position-independent archives of the libraries that Debian has only as shared ones, or as archives for programs alone,
# from Debian's own sources with its patches. In: a folder. Out: FOLDER/deps, a prefix; FOLDER/deps/sources, "SOURCE VERSION" lines;
# FOLDER/deps/licences, a file each. What is up to date is not built again.
set -euo pipefail
work=$(realpath "$1")
. "$(dirname "$(realpath "$0")")/archive.sh"
deps=$work/deps

flags="-O2 -fPIC -ffunction-sections -fdata-sections -fvisibility=hidden -fstack-protector-strong -Wp,-D_FORTIFY_SOURCE=2 -ffile-prefix-map=$work=."
with_cmake() { # SOURCE_FOLDER [OPTION ...]
  local folder=$1
  shift
  cmake -S "$folder" -B "$folder/of-pinfeed" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_STANDARD=17 -DCMAKE_C_FLAGS="$flags" \
    -DCMAKE_CXX_FLAGS="$flags -fvisibility-inlines-hidden" -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX="$deps" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_PREFIX_PATH="$deps" --no-warn-unused-cli "$@" >"$folder.log"
  cmake --build "$folder/of-pinfeed" --target install >>"$folder.log" || die "building $folder failed: $(tail -20 "$folder.log")"
}

build_abseil() { with_cmake abseil -DABSL_PROPAGATE_CXX_STD=ON; }
build_re2() { # whose CMake file does not make the tables that Debian leaves out
  make -C re2 obj/libre2.a REBUILD_TABLES=1 CXX="ccache c++" CXXFLAGS="$flags -std=c++17 -pthread" >re2.log || die "building re2 failed: $(tail -20 re2.log)"
  cp re2/obj/libre2.a "$deps/lib/"
}
build_protobuf() { with_cmake protobuf -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF -Dprotobuf_BUILD_LIBPROTOC=OFF; }
build_fmtlib() { with_cmake fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF; }
build_spdlog() { with_cmake spdlog -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF; }
build_prometheus-cpp() { with_cmake prometheus-cpp -DENABLE_PULL=OFF -DENABLE_PUSH=OFF -DENABLE_COMPRESSION=OFF -DENABLE_TESTING=OFF; }
build_libjpeg-turbo() { # which makes a relative folder one of the current folder
  with_cmake libjpeg-turbo -DCMAKE_INSTALL_LIBDIR="$deps/lib" -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DREQUIRE_SIMD=ON
}
build_libspng() { # its CMake file cannot build the archive alone
  ccache cc $flags -std=c99 -DSPNG_STATIC -c libspng/spng/spng.c -o libspng/spng.o
  ar rcs "$deps/lib/libspng.a" libspng/spng.o
  cp libspng/spng/spng.h "$deps/include/"
  printf '%s\n' "prefix=$deps" 'Name: spng' 'Description: PNG' "Version: $(sed -n 's/^Version: \([0-9.]*\).*/\1/p' libspng_*.dsc | head -1)" 'Requires: zlib' \
    'Cflags: -I${prefix}/include -DSPNG_STATIC' 'Libs: -L${prefix}/lib -lspng' >"$deps/lib/pkgconfig/spng.pc"
}

build_libwebp() {
  with_cmake libwebp -DWEBP_BUILD_ANIM_UTILS=OFF -DWEBP_BUILD_CWEBP=OFF -DWEBP_BUILD_DWEBP=OFF -DWEBP_BUILD_GIF2WEBP=OFF -DWEBP_BUILD_IMG2WEBP=OFF \
    -DWEBP_BUILD_VWEBP=OFF -DWEBP_BUILD_WEBPINFO=OFF -DWEBP_BUILD_LIBWEBPMUX=OFF -DWEBP_BUILD_WEBPMUX=OFF -DWEBP_BUILD_EXTRAS=OFF
  sed -i 's/ -lm\b//' "$deps"/lib/pkgconfig/libwebp*.pc # of which CMake would take the archive
}

libraries="abseil re2 protobuf fmtlib spdlog prometheus-cpp libjpeg-turbo libspng libwebp" # in the order in which they need each other
update_archive
mkdir -p "$deps"/{licences,stamps,include,lib/pkgconfig} "$work/sources"
cd "$work/sources"
built=false # one before it was: what follows may depend on it
for name in $libraries; do
  version=$(source_version "$name")
  stamp="$name $version"$'\n'"$flags"$'\n'"$(declare -f with_cmake "build_$name")"
  if $built || [ "$(cat "$deps/stamps/$name" 2>/dev/null)" != "$stamp" ]; then
    echo "wheel: building $name $version from Debian's source"
    rm -f "$deps/stamps/$name"
    fetch_source "$name"
    "build_$name"
    cp "$name/debian/copyright" "$deps/licences/$name"
    echo "$stamp" >"$deps/stamps/$name"
    built=true
  fi
done
head -q -n 1 "$deps"/stamps/* >"$deps/sources"
