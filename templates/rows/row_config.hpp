// What the kernels over rows share: softmax.hpp, cross_entropy.hpp, layernorm.hpp,
// rmsnorm_residual.hpp, rmsnorm_fp8.hpp, quantize.hpp and gated_fp8.hpp.
//
// A row is read by all threads of a block, of a cluster of blocks, or by one warp. Accesses move
// `vector` elements. The elements in front of a row's first aligned access, and those behind its
// last whole one, are read one by one, so that rows of any length are fast, those of odd
// vocabularies, too. Arrays of which the elements of one place are aligned differently are read
// element by element. (gated_fp8.hpp reads rows in its own way.)
#pragma once

#include "kiln/config.hpp"
#if !defined(KILN_DEVICE_PASS)
#include "kiln/kernel.hpp"
#endif

namespace kiln::templates {

struct RowConfig {
  int block;           // threads per block: a power of two from 32 to 1024
  int rows_per_block;  // 1: all threads on one row; more: a warp per row, block / 32 of them
  int vector;          // elements per access, at most 16 bytes of the input
  int kept;            // accesses per thread that stay in registers; what follows is read again
  bool online;         // a row's statistics in one pass over it, instead of two
  bool persistent;  // as many blocks as are resident walk over the rows, instead of one each, and
                    // begin to read the next row before they look at one
  int resident = 1024;  // threads of a multiprocessor for which registers are left
  int cluster = 1;      // blocks that share a row; more than 1: a cluster, which sm_90 has
  // Rows in shared memory for each block or warp that walks, which bulk copies (sm_90) fill ahead;
  // 0: rows are read to registers.
  int stages = 0;

  constexpr int threads() const { return block; }
  constexpr int threads_per_row() const { return block * cluster / rows_per_block; }
  constexpr int warps_per_row() const { return threads_per_row() / 32; }
  constexpr int step() const { return threads_per_row() * vector; }  // elements per access of all
  /// Dynamic; of rows that are kept whole.
  constexpr unsigned shared_bytes(int width, unsigned element_bytes) const {
    return width > kept * step()
               ? 0u
               : static_cast<unsigned>(stages * rows_per_block * width) * element_bytes;
  }
  constexpr int resident_blocks() const { return resident > block ? resident / block : 1; }
  constexpr unsigned blocks(int rows) const {
    return static_cast<unsigned>((0ll + rows + rows_per_block - 1) / rows_per_block * cluster);
  }
  constexpr unsigned grid(int rows, int multiprocessors) const {
    const unsigned all = blocks(rows);
    const unsigned held = static_cast<unsigned>(multiprocessors * resident_blocks());
    return persistent && held < all ? held : all;
  }
};

struct HiddenRows {
  int rows;    // tokens
  int hidden;  // elements per row

  constexpr int width() const { return hidden; }
};

struct LogitRows {
  int rows;
  int columns;  // elements per row

  constexpr int width() const { return columns; }
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::RowConfig, block, rows_per_block, vector, kept, online, persistent,
            resident, cluster, stages)
KILN_PROBLEM(kiln::templates::HiddenRows, rows, hidden)
KILN_PROBLEM(kiln::templates::LogitRows, rows, columns)
