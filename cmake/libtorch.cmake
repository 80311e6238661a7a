# LibTorch as torchvq uses it, for the build and, beside torchvqConfig.cmake, for projects that find torchvq.
#
# Not find_package(Torch), which needs a CUDA toolkit if torch is a CUDA build; nothing here does. A project that also
# calls it has torch's targets and ours, which refer to the same files.

# torchvq_find_libtorch(<result> <folder>...)
#
# The folder with include/ and lib/ of LibTorch, or nothing: that of the Torch that the project has already found, else
# the one given by Torch_DIR, Torch_ROOT or CMAKE_PREFIX_PATH, else the first of the folders.
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

# torchvq_libtorch_version(<result> <root>): the version in the headers, such as 2.13.0.
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
  # The headers must be compiled with the definitions with which torch itself was compiled.
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
    # A program must link even where the CUDA libraries that libtorch_cuda needs cannot be found.
    INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined"
    # No symbol of libtorch is used, but it must be linked, because it loads torch's backends, such as CUDA's.
    INTERFACE_LINK_LIBRARIES
      "-Wl,--push-state,--no-as-needed,\"${torch_file}\",--pop-state;${torch_cpu_file};${c10_file}")
endfunction()
