# torchvq_unit(<result> <name> <source>...)
#
# A file that includes these sources, to compile them as one unit. CMake's own unity files include sources by absolute
# paths; these use paths on the include path, so that units of all clones are the same to ccache.
function(torchvq_unit result name)
  set(text)
  foreach(source IN LISTS ARGN)
    string(APPEND text "#include \"${source}\"\n")
  endforeach()
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/units/${name}.cpp)
  # Not rewritten if nothing changed.
  file(CONFIGURE OUTPUT ${unit} CONTENT "${text}" @ONLY)
  set(${result} ${unit} PARENT_SCOPE)
endfunction()
