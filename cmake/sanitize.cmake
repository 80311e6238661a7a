if(TORCHVQ_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize=vptr)
  add_link_options(-fsanitize=address,undefined)
endif()

if(TORCHVQ_COVERAGE)
  # Threads share the counters.
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
