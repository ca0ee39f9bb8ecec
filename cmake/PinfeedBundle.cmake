# SPDX-License-Identifier: Apache-2.0
# With PINFEED_BUNDLE every library is taken as a static archive, found before Debian's in CMAKE_PREFIX_PATH (deploy/wheel/dependencies.sh).
if(PINFEED_BUNDLE)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(PKG_CONFIG_ARGN --static)
  set(Protobuf_USE_STATIC_LIBS ON)
  set(OPENSSL_USE_STATIC_LIBS ON)
  # A name that is unique in the process would be shared with other libraries of the trainer's.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-gnu-unique> -ffunction-sections -fdata-sections)
endif()
