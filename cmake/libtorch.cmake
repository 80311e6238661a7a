# LibTorch as torchvq uses it, for the build and, beside torchvqConfig.cmake, for whoever finds torchvq.
#
# Not find_package(Torch): with a CUDA build of torch that wants a CUDA toolkit, and nothing here does. A project that
# calls it all the same has torch's targets and ours, which lead to the same files.

# torchvq_find_libtorch(<result> <folder>...)
#
# The folder that holds include/ and lib/ of LibTorch, or nothing: of the Torch that the project has found itself, else
# the one that Torch_DIR, Torch_ROOT or CMAKE_PREFIX_PATH leads to, else the first of the folders.
function(torchvq_find_libtorch result)
  set(candidates)
  if(TARGET torch)
    get_target_property(imported torch IMPORTED)
    if(imported)
      get_target_property(file torch LOCATION)
      cmake_path(GET file PARENT_PATH lib)
      list(APPEND candidates "${lib}/..")
    endif()
  endif()
  file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" prefixes)
  foreach(dir IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
    list(APPEND candidates "${dir}/../../..")
  endforeach()
  list(APPEND candidates "${Torch_ROOT}" "$ENV{Torch_ROOT}")
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH prefixes)
    # torch.utils.cmake_prefix_path is the folder share/cmake.
    list(APPEND candidates "${prefix}" "${prefix}/../..")
  endforeach()
  set(${result} "" PARENT_SCOPE)
  foreach(root IN LISTS candidates ARGN)
    if(EXISTS "${root}/include/torch/headeronly/version.h")
      file(REAL_PATH "${root}" root)
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# torchvq_libtorch_version(<result> <root>): 2.13.0, as the headers say.
function(torchvq_libtorch_version result root)
  file(STRINGS "${root}/include/torch/headeronly/version.h" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  list(TRANSFORM lines REPLACE "[^0-9]+" "")
  list(JOIN lines "." version)
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# torchvq_add_libtorch(<root>): the target torchvq::libtorch.
function(torchvq_add_libtorch root)
  foreach(name torch torch_cpu c10)
    find_library(${name}_file NAMES ${name} PATHS "${root}/lib" NO_DEFAULT_PATH NO_CACHE REQUIRED)
  endforeach()
  # How torch itself was compiled decides how its headers are to be read.
  file(STRINGS "${c10_file}" new_strings LIMIT_COUNT 1 REGEX "^_ZN3c10.*__cxx1112basic_string")
  if(new_strings)
    set(definitions _GLIBCXX_USE_CXX11_ABI=1)
  else()
    set(definitions _GLIBCXX_USE_CXX11_ABI=0)
  endif()
  set(targets "${root}/share/cmake/Caffe2/Caffe2Targets.cmake")
  if(EXISTS "${targets}")
    file(READ "${targets}" text)
    if(text MATCHES "set_target_properties\\(torch_cpu PROPERTIES[^)]*INTERFACE_COMPILE_DEFINITIONS \"([^\"]*)\"")
      list(APPEND definitions ${CMAKE_MATCH_1})
    endif()
  endif()

  add_library(torchvq::libtorch INTERFACE IMPORTED GLOBAL)
  set_target_properties(torchvq::libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "${definitions}"
    # A program is linked where the libraries of CUDA that libtorch_cuda takes are not to be found, too.
    INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined"
    # Nobody refers to libtorch: it is there to load the backends that this torch has, CUDA's for one.
    INTERFACE_LINK_LIBRARIES
      "-Wl,--push-state,--no-as-needed,\"${torch_file}\",--pop-state;${torch_cpu_file};${c10_file}")
endfunction()
