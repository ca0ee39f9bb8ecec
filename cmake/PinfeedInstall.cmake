# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, in the components that become packages (PinfeedPackage.cmake): the daemon and the tool; the client
# library; what is needed to build with it, found by pkg-config and find_package(pinfeed); the Python package.
install(TARGETS pinfeedd pinfeed_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT daemon)
install(TARGETS pinfeed_client EXPORT pinfeed
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(DIRECTORY client/include/pinfeed DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(DIRECTORY client/python/pinfeed DESTINATION lib/python3/dist-packages COMPONENT python FILES_MATCHING PATTERN *.py PATTERN py.typed PATTERN __pycache__ EXCLUDE)
if(TARGET pinfeed_quick)
  add_dependencies(product pinfeed_quick)
  install(TARGETS pinfeed_quick LIBRARY DESTINATION lib/python3/dist-packages/pinfeed COMPONENT python)
endif()

# As a service.
install(FILES deploy/systemd/pinfeedd.service deploy/systemd/pinfeedd.socket deploy/systemd/pinfeedd-lifeline.socket
  DESTINATION lib/systemd/system COMPONENT daemon)
install(FILES deploy/systemd/sysusers.conf DESTINATION lib/sysusers.d RENAME pinfeed.conf COMPONENT daemon)
install(FILES deploy/systemd/tmpfiles.conf DESTINATION lib/tmpfiles.d RENAME pinfeed.conf COMPONENT daemon)
install(FILES deploy/pinfeed.toml DESTINATION ${CMAKE_INSTALL_DATADIR}/pinfeed COMPONENT daemon)

# The documents, and what they tell operators to copy, as they lie here: the paths and links in them hold below this folder.
install(FILES README.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT daemon)
install(DIRECTORY examples proto DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT daemon FILES_MATCHING PATTERN *.py PATTERN *.proto PATTERN __pycache__ EXCLUDE)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT daemon FILES_MATCHING PATTERN *.md PATTERN *.png PATTERN site EXCLUDE)
install(DIRECTORY deploy/grafana deploy/kubernetes deploy/prometheus DESTINATION ${CMAKE_INSTALL_DOCDIR}/deploy COMPONENT daemon)
install(DIRECTORY deploy/slurm DESTINATION ${CMAKE_INSTALL_DOCDIR}/deploy COMPONENT daemon USE_SOURCE_PERMISSIONS)

# Manual pages and completion are what --help says, in other clothes.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(help_pages ${PROJECT_BINARY_DIR}/man/pinfeed.1 ${PROJECT_BINARY_DIR}/man/pinfeedd.8 ${PROJECT_BINARY_DIR}/man/pinfeed.bash)
add_custom_command(OUTPUT ${help_pages}
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/deploy/help_pages.py $<TARGET_FILE:pinfeed_cli> $<TARGET_FILE:pinfeedd> ${PROJECT_BINARY_DIR}/man
  DEPENDS deploy/help_pages.py pinfeed_cli pinfeedd VERBATIM)
add_custom_target(pinfeed_help_pages ALL DEPENDS ${help_pages})
add_dependencies(product pinfeed_help_pages)
install(FILES ${PROJECT_BINARY_DIR}/man/pinfeed.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT daemon)
install(FILES ${PROJECT_BINARY_DIR}/man/pinfeedd.8 DESTINATION ${CMAKE_INSTALL_MANDIR}/man8 COMPONENT daemon)
install(FILES ${PROJECT_BINARY_DIR}/man/pinfeed.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME pinfeed COMPONENT daemon)

# find_package(pinfeed): the target pinfeed::pinfeed. Any version of the same major one, and before 1.0 of the same minor one, will do.
include(CMakePackageConfigHelpers)
set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/pinfeed)
install(EXPORT pinfeed NAMESPACE pinfeed:: FILE pinfeedConfig.cmake DESTINATION ${cmake_folder} COMPONENT development)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pinfeedConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pinfeedConfigVersion.cmake DESTINATION ${cmake_folder} COMPONENT development)

# pkg-config's prefix is where its file lies, so that the tree may be moved.
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
install(FILES ${PROJECT_BINARY_DIR}/pinfeed.pc DESTINATION ${pkgconfig_folder} COMPONENT development)
