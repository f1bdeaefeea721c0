"""Layers computed for many small models at once, and their GPU kernels (Triton and CUDA C++)."""
