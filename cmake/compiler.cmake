# A compiler without C++20 fails here, in a sentence, and not in the middle of a header.
try_compile(TORCHVQ_HAS_CXX20 ${PROJECT_BINARY_DIR}/cxx20_probe
  SOURCES ${PROJECT_SOURCE_DIR}/cmake/cxx20_probe.cpp
  COMPILE_DEFINITIONS -std=c++20)
if(NOT TORCHVQ_HAS_CXX20)
  message(FATAL_ERROR
    "torchvq: expected a compiler of C++20, but ${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} "
    "${CMAKE_CXX_COMPILER_VERSION}) is none; install GCC 11 or newer and name it with CXX=... in a new build folder")
endif()
# Errors name the line of the source that found them, and no folder of the machine that compiled it.
add_compile_options("-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
