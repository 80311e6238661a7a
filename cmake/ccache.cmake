# ccache makes the second build of an unchanged file free; absent, the build is only slower.
find_program(TORCHVQ_CCACHE ccache)
if(TORCHVQ_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what ccache's manual asks for with precompiled headers of GCC. Files of the checkout go by their
  # paths from the build tree, so that another clone of the same sources compiles nothing again.
  set(settings CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR})
  # To CMake the compiler is c++, to pip g++, and to ccache these are two.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    file(REAL_PATH ${CMAKE_CXX_COMPILER} compiler)
    list(APPEND settings CCACHE_COMPILER=${compiler})
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env ${settings} ${TORCHVQ_CCACHE})
endif()
