# `cmake --install`: bin/telltale, what it loads from lib/telltale, and the package that
# find_package(telltale) finds: telltale::read (telltale/read.h) and telltale::probe
# (telltale/probe.h). The folder can be moved: everything is found relative to what needs it.
include(CMakePackageConfigHelpers)

set_target_properties(telltale PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/telltale")
install(TARGETS telltale RUNTIME DESTINATION bin)
# Arrow's libraries of the wheel, the Python package and its native probe.
install(DIRECTORY ${TELLTALE_LIB_DIR}/ DESTINATION lib/telltale USE_SOURCE_PERMISSIONS
        PATTERN __pycache__ EXCLUDE)

install(TARGETS telltale_read telltale_probe_shared EXPORT telltale LIBRARY DESTINATION lib)
install(DIRECTORY include/telltale DESTINATION include)
install(EXPORT telltale NAMESPACE telltale:: FILE telltale-targets.cmake
        DESTINATION lib/cmake/telltale)
configure_package_config_file(cmake/telltale-config.cmake.in
                              ${CMAKE_BINARY_DIR}/gen/telltale-config.cmake
                              INSTALL_DESTINATION lib/cmake/telltale)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/gen/telltale-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/gen/telltale-config.cmake
              ${CMAKE_BINARY_DIR}/gen/telltale-config-version.cmake
        DESTINATION lib/cmake/telltale)
install(FILES LICENSE DESTINATION share/doc/telltale)
