# SPDX-License-Identifier: Apache-2.0
# Debian packages and a tarball of what PinfeedInstall.cmake installs, made by `make packages` of the build of the preset `release`. What
# Debian wants otherwise than `cmake --install` (paths, documents) is put in place by deploy/debian/stage.cmake.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_VENDOR pinfeed)
set(CPACK_PACKAGE_CONTACT "pinfeed maintainers <maintainers@pinfeed.example>")
set(CPACK_PACKAGING_INSTALL_PREFIX "")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_FILE_NAME ${PROJECT_NAME}-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_COMPONENTS_ALL daemon library development python)

set(debian_folder ${PROJECT_SOURCE_DIR}/deploy/debian)
set(CPACK_PINFEED_DEBIAN_FOLDER ${debian_folder})
set(CPACK_PINFEED_SOURCE_FOLDER ${PROJECT_SOURCE_DIR})
set(CPACK_PRE_BUILD_SCRIPTS ${debian_folder}/stage.cmake)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/client)
# Whatever their revisions.
set(same_library "libpinfeed0 (>= ${PROJECT_VERSION}), libpinfeed0 (<< ${PROJECT_VERSION}.)")

set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME pinfeed)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS "${same_library}, init-system-helpers (>= 1.62), systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles")
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA ${debian_folder}/daemon/postinst ${debian_folder}/daemon/prerm ${debian_folder}/daemon/postrm ${debian_folder}/daemon/conffiles)
set(CPACK_COMPONENT_DAEMON_DESCRIPTION "Feeds training batches to the trainers of a host
pinfeedd reads, decodes and collates training batches once, in native
threads, and hands them to trainer processes as mapped memory or on the
GPU. This package holds the daemon, a systemd service, and its tool.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libpinfeed0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${debian_folder}/library/triggers ${debian_folder}/library/shlibs)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "Client library of pinfeed
libpinfeed attaches a trainer to pinfeedd, the daemon that loads training
batches once per host. It has a C interface.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libpinfeed-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${same_library}")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Client library of pinfeed: what is needed to build with it
Headers for C and C++ and the files by which pkg-config and CMake find
libpinfeed, which attaches a trainer to pinfeedd.")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-pinfeed)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
if(NOT TARGET pinfeed_quick)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
endif()
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "libc6, libpinfeed0 (>= ${PROJECT_VERSION}), python3 (>= 3.8), python3-numpy")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS pinfeed)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS python3-torch)
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA ${debian_folder}/python/postinst ${debian_folder}/python/prerm)
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "Training batches from pinfeedd as tensors
The package pinfeed gives PyTorch tensors and NumPy arrays that a daemon loads,
decodes and collates once per host, with the state for resuming.")
include(CPack)
