# SPDX-License-Identifier: Apache-2.0
# What every target of this project shares. Warnings are PRIVATE: they are ours, not our users'.
include(GNUInstallDirs)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_package(Threads REQUIRED)
find_program(PINFEED_MOLD mold)
if(PINFEED_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
if(PINFEED_SANITIZE)
  add_compile_options(-fsanitize=${PINFEED_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # vptr opens a pipe to learn whether it may read an object, so it calls every one broken while no descriptor is left, as in some tests.
  add_compile_options(-fno-sanitize=vptr)
  # clang's check of function types compares the names of structs; a driver's functions, found by dlsym, are declared with structs of ours.
  add_compile_options($<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  add_link_options(-fsanitize=${PINFEED_SANITIZE})
endif()

function(pinfeed_target name)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
endfunction()

# A static library of one folder: pinfeed_library(common SOURCES ... DEPS ...), alias pinfeed::common.
function(pinfeed_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(pinfeed_${folder} STATIC ${ARG_SOURCES})
  add_library(pinfeed::${folder} ALIAS pinfeed_${folder})
  pinfeed_target(pinfeed_${folder})
  target_link_libraries(pinfeed_${folder} PUBLIC ${ARG_DEPS})
endfunction()
