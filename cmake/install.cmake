# Installation in two layouts from one build tree:
#
#   cmake --install build --prefix P      bin/ lib/ include/ lib/cmake/torchvq/          components runtime, development
#   the wheel (scikit-build-core)         torchvq/{lib,include,share/cmake/torchvq}      component wheel
#
# They are separate components instead of branches on SKBUILD, so that configuring for one does not change the other,
# and nothing is built again when a tree serves both.
#
# A wheel can hold the libraries of several versions of torch (tools/build_wheel.py): library and program are in
# lib/torch2.13/, the targets that name them in share/cmake/torchvq/torch2.13/, and everything else is shared.

set(TORCHVQ_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/torchvq)
set(TORCHVQ_OF_TORCH torch${TORCHVQ_TORCH_MINOR})
# The torch of the build as a fallback, which is valid if the library runs on the machine that built it.
if(TORCHVQ_RELOCATABLE)
  set(TORCHVQ_TORCH_FALLBACK)
else()
  set(TORCHVQ_TORCH_FALLBACK ${TORCHVQ_TORCH_ROOT})
endif()

# How installed files find torch and torchvq. The list is the same in both layouts, in this order: the file's own folder
# (the program of a wheel), lib/ (of a prefix), the torch beside the package torchvq (a wheel), and last the torch of
# the build.
set(rpath "$ORIGIN" "$ORIGIN/../../../torch/lib")
if(TORCHVQ_TORCH_FALLBACK)
  list(APPEND rpath ${TORCHVQ_TORCH_FALLBACK}/lib)
endif()
set_target_properties(torchvq PROPERTIES INSTALL_RPATH "${rpath}")

# Everything in the wheel, without tests and benchmarks.
add_custom_target(torchvq_wheel DEPENDS torchvq)
if(TARGET torchvq_cli)
  file(RELATIVE_PATH to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(torchvq_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${to_lib};${rpath}")
  install(TARGETS torchvq_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  install(TARGETS torchvq_cli RUNTIME DESTINATION lib/${TORCHVQ_OF_TORCH} COMPONENT wheel EXCLUDE_FROM_ALL)
  if(DEFINED SKBUILD_SCRIPTS_DIR)
    install(PROGRAMS ${PROJECT_SOURCE_DIR}/python/scripts/torchvq
      DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel EXCLUDE_FROM_ALL)
  endif()
  add_dependencies(torchvq_wheel torchvq_cli)
endif()

# torchvq_install_library(<export> <lib> <include> <cmake> <component> [EXCLUDE_FROM_ALL])
function(torchvq_install_library export lib include cmake component)
  install(TARGETS torchvq EXPORT ${export} LIBRARY DESTINATION ${lib} COMPONENT ${component} ${ARGN})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/torchvq DESTINATION ${include} COMPONENT ${component} ${ARGN})
  install(FILES ${PROJECT_BINARY_DIR}/include/torchvq/version.h
    DESTINATION ${include}/torchvq COMPONENT ${component} ${ARGN})
  install(EXPORT ${export} FILE torchvqTargets.cmake NAMESPACE torchvq:: DESTINATION ${cmake}/${TORCHVQ_OF_TORCH}
    COMPONENT ${component} ${ARGN})
  configure_package_config_file(
    ${PROJECT_SOURCE_DIR}/cmake/torchvqConfig.cmake.in ${PROJECT_BINARY_DIR}/${export}/torchvqConfig.cmake
    INSTALL_DESTINATION ${cmake})
  install(FILES
      ${PROJECT_BINARY_DIR}/${export}/torchvqConfig.cmake
      ${PROJECT_BINARY_DIR}/torchvqConfigVersion.cmake
      ${PROJECT_SOURCE_DIR}/cmake/libtorch.cmake
    DESTINATION ${cmake} COMPONENT ${component} ${ARGN})
endfunction()

# A minor version may break the interface until 1.0 (CHANGELOG.md names each break).
write_basic_package_version_file(${PROJECT_BINARY_DIR}/torchvqConfigVersion.cmake COMPATIBILITY SameMinorVersion)

torchvq_install_library(torchvqTargets
  ${CMAKE_INSTALL_LIBDIR} ${CMAKE_INSTALL_INCLUDEDIR} ${TORCHVQ_CMAKE_DIR} development)
torchvq_install_library(torchvqWheelTargets
  lib/${TORCHVQ_OF_TORCH} include share/cmake/torchvq wheel EXCLUDE_FROM_ALL)
