# ccache makes the second build of an unchanged file free; absent, the build is only slower.
find_program(TORCHVQ_CCACHE ccache)
if(TORCHVQ_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache's manual asks for with precompiled headers of GCC.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${TORCHVQ_CCACHE})
endif()
