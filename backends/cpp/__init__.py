"""C++ backends: shared libraries written for Triton's backend API (`tritonbackend.h`), unmodified."""
