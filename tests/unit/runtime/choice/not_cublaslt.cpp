extern "C" int nothing_of_cublaslt() { return 0; }
