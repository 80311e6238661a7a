# Kernels compiled once per instruction set; the level is chosen at run time (kernels/cpu/cpu_level.h).
# Adding a kernel: write <kernel>-inl.h and one two-line .cpp per level, and list <kernel> here.
#
# Two families of flags: screening kernels, which work in float32 within a proven error bound, and products of rows may
# contract to fused multiply-add; exact kernels may not (-ffp-contract=off is the whole library's default).
set(TORCHVQ_SCREENING_KERNELS nearest_code_scan prepared_scan residual_beam_scan row_products)
set(TORCHVQ_EXACT_KERNELS binary_codes code_rows latent_quantize nearest_code_exact projected_level resample_rows
    sample_codes scalar_quantize score_rows sign_entropy token_rows transpose)

set(TORCHVQ_LEVELS default)
set(TORCHVQ_LEVEL_FLAGS_default "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  list(APPEND TORCHVQ_LEVELS avx2 avx512)
  set(TORCHVQ_LEVEL_FLAGS_avx2 -mavx2 -mfma)
  set(TORCHVQ_LEVEL_FLAGS_avx512 -mavx2 -mfma -mavx512f -mavx512dq -mavx512vl -mavx512bw)
  target_compile_definitions(torchvq PRIVATE TORCHVQ_HAVE_X86_LEVELS)
endif()

foreach(level IN LISTS TORCHVQ_LEVELS)
  foreach(kernel IN LISTS TORCHVQ_SCREENING_KERNELS TORCHVQ_EXACT_KERNELS)
    set(flags ${TORCHVQ_LEVEL_FLAGS_${level}} -O3 -fno-math-errno -fno-trapping-math)
    if(kernel IN_LIST TORCHVQ_SCREENING_KERNELS)
      list(APPEND flags -ffp-contract=fast -fno-signed-zeros)
    endif()
    set(source kernels/cpu/${kernel}_${level}.cpp)
    target_sources(torchvq PRIVATE ${source})
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${flags}")
  endforeach()
endforeach()
