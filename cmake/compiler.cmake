# A compiler without C++20 fails here with a sentence, instead of inside a header.
try_compile(TORCHVQ_HAS_CXX20 ${PROJECT_BINARY_DIR}/cxx20_probe
  SOURCES ${PROJECT_SOURCE_DIR}/cmake/cxx20_probe.cpp
  COMPILE_DEFINITIONS -std=c++20)
if(NOT TORCHVQ_HAS_CXX20)
  message(FATAL_ERROR
    "torchvq: expected a compiler of C++20, but ${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} "
    "${CMAKE_CXX_COMPILER_VERSION}) is none; install GCC 11 or newer and name it with CXX=... in a new build folder")
endif()
# Error messages name source file and line, without the folder of the machine that compiled them.
add_compile_options("-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
