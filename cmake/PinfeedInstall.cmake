# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, beyond the daemon: the client library with its headers and pkg-config file, the tool, the Python package.
install(TARGETS pinfeed_client LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS pinfeed_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY client/include/pinfeed DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY client/python/pinfeed DESTINATION lib/python3/dist-packages FILES_MATCHING PATTERN *.py PATTERN py.typed)

# Its prefix is where it lies, so that the tree may be moved.
cmake_path(SET pkgconfig_folder NORMALIZE "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/${pkgconfig_folder}" OUTPUT_VARIABLE to_prefix)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/pinfeed.pc @ONLY CONTENT [[
prefix=${pcfiledir}/@to_prefix@
Name: pinfeed
Description: Training batches from a daemon: the C and C++ client
Version: @PROJECT_VERSION@
Cflags: -I${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
Libs: -L${prefix}/@CMAKE_INSTALL_LIBDIR@ -lpinfeed
]])
install(FILES ${PROJECT_BINARY_DIR}/pinfeed.pc DESTINATION ${pkgconfig_folder})
