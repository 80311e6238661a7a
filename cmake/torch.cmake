# Finds the LibTorch of the Python that runs the build, unless CMAKE_PREFIX_PATH already leads to one.
if(NOT TARGET torch)
  find_package(Torch QUIET)
  if(NOT Torch_FOUND)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
      OUTPUT_VARIABLE TORCHVQ_TORCH_PREFIX OUTPUT_STRIP_TRAILING_WHITESPACE
      RESULT_VARIABLE TORCHVQ_TORCH_RESULT ERROR_QUIET)
    if(NOT TORCHVQ_TORCH_RESULT EQUAL 0)
      message(FATAL_ERROR
        "torchvq: expected torch to be importable by ${Python3_EXECUTABLE}, or CMAKE_PREFIX_PATH to "
        "lead to LibTorch, but found neither; run `make setup`, or pass -DPython3_EXECUTABLE=...")
    endif()
    list(APPEND CMAKE_PREFIX_PATH ${TORCHVQ_TORCH_PREFIX})
    find_package(Torch REQUIRED)
  endif()
endif()
get_filename_component(TORCHVQ_TORCH_LIBRARY_DIR "${TORCH_LIBRARY}" DIRECTORY)
