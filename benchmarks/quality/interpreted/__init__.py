"""A Triton back end for CPUs that leaves everything to the interpreter."""
