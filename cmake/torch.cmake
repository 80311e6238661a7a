# Finds LibTorch: the one that CMAKE_PREFIX_PATH leads to, else that of the Python that runs the build.
#
# Sets TORCHVQ_TORCH_LIBRARY_DIR, the folder of libtorch.so, for the RPATH of what we install.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(NOT TARGET torch)
  # Torch's targets are needed by whoever adds us as a subdirectory, above this folder.
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
  # A tree first configured with one Python and then with another must not keep the torch of the first: CMake caches
  # the place of every package and library that it has found.
  if(DEFINED TORCHVQ_TORCH_PYTHON AND NOT TORCHVQ_TORCH_PYTHON STREQUAL "${Python3_EXECUTABLE}")
    foreach(stale Torch_DIR Caffe2_DIR TORCH_LIBRARY c10_LIBRARY)
      unset(${stale} CACHE)
    endforeach()
  endif()
  find_package(Torch QUIET)
  if(NOT Torch_FOUND)
    # find_spec does not import torch, which would cost seconds.
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0] + '/share/cmake')"
      OUTPUT_VARIABLE TORCHVQ_TORCH_PREFIX OUTPUT_STRIP_TRAILING_WHITESPACE
      RESULT_VARIABLE TORCHVQ_TORCH_RESULT ERROR_QUIET)
    if(NOT Python3_FOUND OR NOT TORCHVQ_TORCH_RESULT EQUAL 0)
      message(FATAL_ERROR
        "torchvq: expected torch to be importable by Python (\"${Python3_EXECUTABLE}\"), or CMAKE_PREFIX_PATH to "
        "lead to LibTorch, but found neither; run `make setup`, or pass -DPython3_EXECUTABLE=...")
    endif()
    list(APPEND CMAKE_PREFIX_PATH ${TORCHVQ_TORCH_PREFIX})
    find_package(Torch REQUIRED)
  endif()
  set(TORCHVQ_TORCH_PYTHON "${Python3_EXECUTABLE}" CACHE INTERNAL "The Python whose torch was found")
  unset(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
endif()
get_filename_component(TORCHVQ_TORCH_LIBRARY_DIR "${TORCH_LIBRARY}" DIRECTORY)
