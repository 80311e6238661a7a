# ccache makes the second build of an unchanged file free; absent, the build is only slower.
find_program(TORCHVQ_CCACHE ccache)
if(TORCHVQ_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TORCHVQ_CCACHE})
endif()
