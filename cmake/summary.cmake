if(PROJECT_IS_TOP_LEVEL)
  message(STATUS "torchvq ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, torch ${TORCHVQ_TORCH_VERSION}, "
    "command line ${TORCHVQ_BUILD_CLI}, tests ${TORCHVQ_BUILD_TESTS}, "
    "benchmarks ${TORCHVQ_BUILD_BENCHMARKS}, examples ${TORCHVQ_BUILD_EXAMPLES}")
endif()
