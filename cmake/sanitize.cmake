if(TORCHVQ_SANITIZE)
  add_compile_options(-fsanitize=${TORCHVQ_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TORCHVQ_SANITIZE})
  if(TORCHVQ_SANITIZE MATCHES undefined)
    # libtorch lacks the type information that this check needs.
    add_compile_options(-fno-sanitize=vptr)
  endif()
endif()

if(TORCHVQ_BUILD_FUZZERS)
  # Also instruments the branches of the library; the fuzzers provide the main program.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(TORCHVQ_COVERAGE)
  # Threads share the counters.
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
