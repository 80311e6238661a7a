# torchvq_unit(<result> <name> <source>...)
#
# A file that includes these sources, which compiles them at once. CMake's own units name their sources by full paths;
# here they are named as on the include path, and units of all clones are the same to the cache of a compiler.
function(torchvq_unit result name)
  set(text)
  foreach(source IN LISTS ARGN)
    string(APPEND text "#include \"${source}\"\n")
  endforeach()
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/units/${name}.cpp)
  # Left alone when nothing changed.
  file(CONFIGURE OUTPUT ${unit} CONTENT "${text}" @ONLY)
  set(${result} ${unit} PARENT_SCOPE)
endfunction()
