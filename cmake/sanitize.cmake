if(TORCHVQ_SANITIZE)
  add_compile_options(-fsanitize=${TORCHVQ_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TORCHVQ_SANITIZE})
  if(TORCHVQ_SANITIZE MATCHES undefined)
    # libtorch has no type information of the kind that this looks for.
    add_compile_options(-fno-sanitize=vptr)
  endif()
endif()

if(TORCHVQ_BUILD_FUZZERS)
  # Counts the branches of the library, too; the fuzzers bring the main program.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(TORCHVQ_COVERAGE)
  # Threads share the counters.
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
