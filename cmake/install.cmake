# What is installed, in two layouts from one build tree:
#
#   cmake --install build --prefix P      bin/ lib/ include/ lib/cmake/torchvq/          components runtime, development
#   the wheel (scikit-build-core)         torchvq/{lib,include,share/cmake/torchvq}      component wheel
#
# They are separate components, and not branches on SKBUILD, so that configuring for one never changes the other and
# nothing is built again when a tree serves both.

set(TORCHVQ_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/torchvq)

# How what we install finds torch and us. The same list in both layouts, in this order:
# beside this file (the program of a prefix, and its library), the torch beside the torchvq package (a wheel), and last
# the torch of the build, which is right wherever the machine that builds is the machine that runs.
set_target_properties(torchvq PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib;${TORCHVQ_TORCH_LIBRARY_DIR}")

function(torchvq_installed_program target)
  file(RELATIVE_PATH to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set(rpath "$ORIGIN/${to_lib}")
  if(Python3_VERSION_MAJOR)
    # From the scripts folder of an environment to its packages; Debian's own Python calls them dist-packages.
    foreach(packages site-packages dist-packages)
      set(packages "$ORIGIN/../lib/python${Python3_VERSION_MAJOR}.${Python3_VERSION_MINOR}/${packages}")
      list(APPEND rpath "${packages}/torchvq/lib" "${packages}/torch/lib")
    endforeach()
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath};${TORCHVQ_TORCH_LIBRARY_DIR}")
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  if(DEFINED SKBUILD_SCRIPTS_DIR)
    install(TARGETS ${target} RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel EXCLUDE_FROM_ALL)
  endif()
endfunction()

# All that goes into the wheel, and nothing of the tests and benchmarks.
add_custom_target(torchvq_wheel DEPENDS torchvq)
if(TARGET torchvq_cli)
  torchvq_installed_program(torchvq_cli)
  add_dependencies(torchvq_wheel torchvq_cli)
endif()

# torchvq_install_library(<export> <lib> <include> <cmake> <component> [EXCLUDE_FROM_ALL])
function(torchvq_install_library export lib include cmake component)
  install(TARGETS torchvq EXPORT ${export} LIBRARY DESTINATION ${lib} COMPONENT ${component} ${ARGN})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/torchvq DESTINATION ${include} COMPONENT ${component} ${ARGN})
  install(FILES ${PROJECT_BINARY_DIR}/include/torchvq/version.h
    DESTINATION ${include}/torchvq COMPONENT ${component} ${ARGN})
  install(EXPORT ${export} FILE torchvqTargets.cmake NAMESPACE torchvq:: DESTINATION ${cmake}
    COMPONENT ${component} ${ARGN})
  configure_package_config_file(
    ${PROJECT_SOURCE_DIR}/cmake/torchvqConfig.cmake.in ${PROJECT_BINARY_DIR}/${export}/torchvqConfig.cmake
    INSTALL_DESTINATION ${cmake})
  install(FILES
      ${PROJECT_BINARY_DIR}/${export}/torchvqConfig.cmake
      ${PROJECT_BINARY_DIR}/torchvqConfigVersion.cmake
    DESTINATION ${cmake} COMPONENT ${component} ${ARGN})
endfunction()

# A minor version may break the interface until 1.0 (CHANGELOG.md names each break).
write_basic_package_version_file(${PROJECT_BINARY_DIR}/torchvqConfigVersion.cmake COMPATIBILITY SameMinorVersion)

torchvq_install_library(torchvqTargets
  ${CMAKE_INSTALL_LIBDIR} ${CMAKE_INSTALL_INCLUDEDIR} ${TORCHVQ_CMAKE_DIR} development)
torchvq_install_library(torchvqWheelTargets
  lib include share/cmake/torchvq wheel EXCLUDE_FROM_ALL)

# The Python package reads this before it loads the library: a library built against another torch fails to load, or
# loads and crashes, and either should be a sentence.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/torch_version.txt CONTENT "@Torch_VERSION@\n" @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/torch_version.txt DESTINATION lib COMPONENT wheel EXCLUDE_FROM_ALL)
