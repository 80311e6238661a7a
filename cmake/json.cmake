# nlohmann/json, header only: the installed one (Debian: nlohmann-json3-dev), else PyPI's nlohmann-json in the Python
# that runs the build, so that building needs no system packages beyond a compiler.
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json 3.10 QUIET)
endif()
if(NOT TARGET nlohmann_json::nlohmann_json AND Python3_FOUND)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.util as u; print(u.find_spec('nlohmann_json').submodule_search_locations[0] + '/include')"
    OUTPUT_VARIABLE TORCHVQ_JSON_INCLUDE_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE TORCHVQ_JSON_RESULT ERROR_QUIET)
  if(TORCHVQ_JSON_RESULT EQUAL 0)
    add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
    set_target_properties(nlohmann_json::nlohmann_json PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${TORCHVQ_JSON_INCLUDE_DIR}")
  endif()
endif()
if(NOT TARGET nlohmann_json::nlohmann_json)
  message(FATAL_ERROR
    "torchvq: expected nlohmann/json 3.10 or newer, but found none; install nlohmann-json3-dev (Debian), or run "
    "`pip install nlohmann-json` for the Python of the build")
endif()
