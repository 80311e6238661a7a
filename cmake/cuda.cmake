# Kernels for NVIDIA GPUs: whether they are compiled, and for which architectures.
#
#   TORCHVQ_CUDA                AUTO compiles them if nvcc is found and torch is built for CUDA; ON if nvcc is found,
#                               for any torch (the library then loads into either); OFF never.
#   TORCHVQ_CUDA_ARCHITECTURES  "80;86;90a": machine code for these, and PTX of 8.0 for all later ones. Empty:
#                               with AUTO those of the cards of this machine, else all of TORCHVQ_CUDA_ALL.
#
# Sets TORCHVQ_WITH_CUDA. nvcc is called by custom commands, because CMake's CUDA language would have to be enabled for
# the whole project, and would hide the report of registers and spills.
set(TORCHVQ_CUDA AUTO CACHE STRING "Compile the CUDA kernels: AUTO, ON or OFF")
set_property(CACHE TORCHVQ_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TORCHVQ_CUDA_ARCHITECTURES "" CACHE STRING "Architectures of the CUDA kernels, as 80;90a; empty: see cmake/cuda.cmake")
set(TORCHVQ_CUDA_ALL 80 86 89 90a 100 120)
set(TORCHVQ_CUDA_PTX 80)

find_program(TORCHVQ_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)
mark_as_advanced(TORCHVQ_NVCC)

# torchvq_cards(<result>): the compute capabilities of the cards of this machine, as 80;89.
function(torchvq_cards result)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE cards RESULT_VARIABLE status ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${result} "" PARENT_SCOPE)
  if(status EQUAL 0)
    string(REPLACE "." "" cards "${cards}")
    string(REGEX MATCHALL "[0-9]+" cards "${cards}")
    list(REMOVE_DUPLICATES cards)
    # Older cards lack the asynchronous copies and the tensor core products that the kernels use.
    list(FILTER cards EXCLUDE REGEX "^[1-7][0-9]$")
    list(TRANSFORM cards REPLACE "^90$" "90a")
    set(${result} "${cards}" PARENT_SCOPE)
  endif()
endfunction()

# CUDA 12 is the first with C++20.
set(torchvq_cuda_version 0)
if(TORCHVQ_NVCC)
  execute_process(COMMAND ${TORCHVQ_NVCC} --version OUTPUT_VARIABLE torchvq_cuda_version ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" _ "${torchvq_cuda_version}")
  set(torchvq_cuda_version "${CMAKE_MATCH_1}")
endif()

set(TORCHVQ_WITH_CUDA OFF)
if(TORCHVQ_CUDA STREQUAL "AUTO")
  if(torchvq_cuda_version VERSION_GREATER_EQUAL 12 AND EXISTS "${TORCHVQ_TORCH_ROOT}/lib/libtorch_cuda.so")
    set(TORCHVQ_WITH_CUDA ON)
  endif()
elseif(TORCHVQ_CUDA)
  if(NOT TORCHVQ_NVCC)
    message(FATAL_ERROR
      "torchvq: expected nvcc for TORCHVQ_CUDA=ON, but found none; install the CUDA toolkit, set CUDA_HOME, or configure "
      "with -DTORCHVQ_CUDA=OFF")
  endif()
  if(torchvq_cuda_version VERSION_LESS 12)
    message(FATAL_ERROR
      "torchvq: expected nvcc to be of CUDA 12 or newer for TORCHVQ_CUDA=ON, but got ${torchvq_cuda_version} "
      "(${TORCHVQ_NVCC}); set CUDA_HOME to a newer toolkit, or configure with -DTORCHVQ_CUDA=OFF")
  endif()
  set(TORCHVQ_WITH_CUDA ON)
endif()

if(TORCHVQ_WITH_CUDA)
  set(torchvq_architectures ${TORCHVQ_CUDA_ARCHITECTURES})
  if(NOT torchvq_architectures AND TORCHVQ_CUDA STREQUAL "AUTO")
    torchvq_cards(torchvq_architectures)
  endif()
  if(NOT torchvq_architectures)
    set(torchvq_architectures ${TORCHVQ_CUDA_ALL})
  endif()
  set(TORCHVQ_GENCODE -gencode arch=compute_${TORCHVQ_CUDA_PTX},code=compute_${TORCHVQ_CUDA_PTX})
  foreach(architecture IN LISTS torchvq_architectures)
    list(APPEND TORCHVQ_GENCODE -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  # The toolkit of this nvcc, taken from its dry run, because nvcc may be a wrapper script.
  execute_process(COMMAND ${TORCHVQ_NVCC} --dryrun -x cu /dev/null ERROR_VARIABLE torchvq_dryrun OUTPUT_QUIET)
  string(REGEX MATCH "#\\$ TOP=([^\n]+)" torchvq_top "${torchvq_dryrun}")
  find_library(torchvq_cudart NAMES libcudart_static.a NO_CACHE REQUIRED
    HINTS "${CMAKE_MATCH_1}" /usr/local/cuda PATH_SUFFIXES lib64 targets/x86_64-linux/lib targets/sbsa-linux/lib lib)
endif()

# torchvq_cuda_object(<result> <source>): compiles src/<source>, a .cu, with nvcc. The report of ptxas on registers and
# spills is beside the object, in <source>.ptxas, for tools/cuda_report.py.
#
# -fmad=false, because bits must not depend on a compiler's contractions; kernels that need a fused multiply-add call
# fma(). The flags are in nvcc.txt, a line each, for tools/cuda_report.py.
set(TORCHVQ_NVCC_FLAGS -std=c++20 -O3 --expt-relaxed-constexpr -fmad=false -ccbin ${CMAKE_CXX_COMPILER}
  -Xcompiler -fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall -I ${PROJECT_SOURCE_DIR}/src)
if("90a" IN_LIST torchvq_architectures)
  # Of a host: that a card of capability 9 has the kernels for groups of four warps.
  list(APPEND TORCHVQ_NVCC_FLAGS -DTORCHVQ_CUDA_GROUP_PRODUCTS)
endif()
if(TORCHVQ_WITH_CUDA)
  list(JOIN TORCHVQ_NVCC_FLAGS "\n" torchvq_lines)
  file(WRITE ${PROJECT_BINARY_DIR}/nvcc.txt "${TORCHVQ_NVCC}\n${torchvq_lines}\n")
endif()
function(torchvq_cuda_object result source)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${source}.o)
  get_filename_component(folder ${object} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  set(command ${TORCHVQ_NVCC} ${TORCHVQ_NVCC_FLAGS} -Xptxas -v ${TORCHVQ_GENCODE}
    -MD -MF ${object}.d -MT ${object} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object})
  string(REPLACE ";" " " command "${command}")
  add_custom_command(OUTPUT ${object} BYPRODUCTS ${object}.ptxas
    COMMAND sh -c "${command} 2>${object}.ptxas || { cat ${object}.ptxas >&2; exit 1; }"
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} DEPFILE ${object}.d
    COMMENT "Compiling ${source} for ${torchvq_architectures}" VERBATIM)
  set(${result} ${object} PARENT_SCOPE)
endfunction()
