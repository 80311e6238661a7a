# Finds LibTorch: the one on CMAKE_PREFIX_PATH, else that of the Python that runs the build. Nothing of it is cached,
# because a tree configured with another Python must not keep the torch of the first.
#
# Sets TORCHVQ_TORCH_ROOT, TORCHVQ_TORCH_VERSION (2.13.0) and TORCHVQ_TORCH_MINOR (2.13).
include(${CMAKE_CURRENT_LIST_DIR}/libtorch.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/torch_versions.cmake)
find_package(Python3 QUIET COMPONENTS Interpreter)

set(torch_of_python)
if(Python3_FOUND)
  # find_spec does not import torch, which would take seconds.
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_of_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
torchvq_find_libtorch(TORCHVQ_TORCH_ROOT ${torch_of_python})
if(NOT TORCHVQ_TORCH_ROOT)
  message(FATAL_ERROR
    "torchvq: expected torch to be importable by Python (\"${Python3_EXECUTABLE}\"), or CMAKE_PREFIX_PATH to "
    "lead to LibTorch, but found neither; run `make setup`, or pass -DPython3_EXECUTABLE=...")
endif()

torchvq_libtorch_version(TORCHVQ_TORCH_VERSION "${TORCHVQ_TORCH_ROOT}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TORCHVQ_TORCH_MINOR "${TORCHVQ_TORCH_VERSION}")
if(NOT TORCHVQ_TORCH_MINOR IN_LIST TORCHVQ_TORCH_VERSIONS)
  list(JOIN TORCHVQ_TORCH_VERSIONS ", " supported)
  message(FATAL_ERROR
    "torchvq: expected torch to be one of ${supported}, but found ${TORCHVQ_TORCH_VERSION} in ${TORCHVQ_TORCH_ROOT}; "
    "install one of these, or lead CMAKE_PREFIX_PATH to it")
endif()
torchvq_add_libtorch("${TORCHVQ_TORCH_ROOT}")
