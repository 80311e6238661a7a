# Compiles the sources of a folder several at a time: most of what a source costs is torch's headers, which a unit
# parses once. Names in the unnamed namespaces of one folder are therefore all different; TORCHVQ_UNITY=OFF (file by
# file) serves work on one file, and clang-tidy. Kernels stay files of their own, with the flags of their instruction
# set.
set(TORCHVQ_SOURCES_PER_UNIT 12)

function(torchvq_compile_in_units target)
  foreach(source IN LISTS ARGN)
    get_filename_component(folder "${source}" DIRECTORY)
    if(NOT folder STREQUAL "kernels/cpu")
      string(MAKE_C_IDENTIFIER "sources_${folder}" folder)
      list(APPEND folders ${folder})
      list(APPEND ${folder} ${source})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH ${folder} count)
    # As few units as hold them all, of about the same size.
    math(EXPR units "(${count} + ${TORCHVQ_SOURCES_PER_UNIT} - 1) / ${TORCHVQ_SOURCES_PER_UNIT}")
    set(index 0)
    foreach(source IN LISTS ${folder})
      math(EXPR unit "${index} * ${units} / ${count}")
      math(EXPR index "${index} + 1")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${folder}_${unit}")
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
