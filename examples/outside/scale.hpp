#pragma once

#include <kiln/config.hpp>

struct Scale {
  int block;  // threads per block
};
KILN_CONFIG(Scale, block)

struct Matrix {
  int rows, columns;
};
KILN_PROBLEM(Matrix, rows, columns)
