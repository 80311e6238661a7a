# The CUDA kernels and their operators as objects of the library. A target of its own: the emulation of tests takes the
# objects of torchvq, and has these operators in its own way.
include(kernels/cuda/sources.cmake)
set(torchvq_cuda_operators ${TORCHVQ_CUDA_OPERATORS})
if(TORCHVQ_UNITY)
  torchvq_unit(torchvq_cuda_operators ops_cuda ${TORCHVQ_CUDA_OPERATORS})
endif()
add_library(torchvq_cuda OBJECT ${torchvq_cuda_operators})
target_compile_options(torchvq_cuda PRIVATE -std=gnu++20 -Wall -Wextra -Wno-unused-parameter -ffp-contract=off)
target_include_directories(torchvq_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
target_link_libraries(torchvq_cuda PRIVATE torchvq::libtorch)
set_target_properties(torchvq_cuda PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)

foreach(source IN LISTS TORCHVQ_CUDA_KERNELS)
  torchvq_cuda_object(object ${source})
  target_sources(torchvq PRIVATE ${object})
endforeach()
target_sources(torchvq PRIVATE $<TARGET_OBJECTS:torchvq_cuda>)
# A runtime of our own, whose names stay ours: torch's may be of another version, or absent.
find_package(Threads REQUIRED)
target_link_libraries(torchvq PRIVATE
  $<BUILD_INTERFACE:${torchvq_cudart}> $<BUILD_INTERFACE:rt> $<BUILD_INTERFACE:Threads::Threads> ${CMAKE_DL_LIBS})
target_link_options(torchvq PRIVATE LINKER:--exclude-libs,libcudart_static.a)
