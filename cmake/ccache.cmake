# With ccache, a second build of unchanged files costs nothing; without it, the build is only slower.
find_program(TORCHVQ_CCACHE ccache)
if(TORCHVQ_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache's manual requires the first two sloppinesses for precompiled headers of GCC. Of the locale only the language
  # of warnings depends, and pip sets another one than a shell. Paths in the checkout are taken relative to the build
  # tree, so that another clone of the same sources compiles nothing again.
  set(settings CCACHE_SLOPPINESS=pch_defines,time_macros,locale CCACHE_BASEDIR=${PROJECT_SOURCE_DIR})
  # CMake calls the compiler c++, pip g++; ccache would take these for two compilers.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    file(REAL_PATH ${CMAKE_CXX_COMPILER} compiler)
    list(APPEND settings CCACHE_COMPILER=${compiler})
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env ${settings} ${TORCHVQ_CCACHE})
endif()
