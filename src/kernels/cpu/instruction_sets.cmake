# Kernels compiled once per instruction set; the level is chosen at run time (kernels/cpu/cpu_level.h).
