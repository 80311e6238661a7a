if(PROJECT_IS_TOP_LEVEL)
  if(TORCHVQ_WITH_CUDA)
    list(JOIN torchvq_architectures " " torchvq_cuda)
  else()
    set(torchvq_cuda OFF)
  endif()
  message(STATUS "torchvq ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, torch ${TORCHVQ_TORCH_VERSION}, CUDA ${torchvq_cuda}, "
    "command line ${TORCHVQ_BUILD_CLI}, tests ${TORCHVQ_BUILD_TESTS}, "
    "benchmarks ${TORCHVQ_BUILD_BENCHMARKS}, examples ${TORCHVQ_BUILD_EXAMPLES}")
endif()
