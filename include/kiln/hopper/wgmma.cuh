// Part of kiln/hopper.cuh: the instruction behind multiply(), for each number of columns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kiln/hopper/operand.cuh"

struct __nv_fp8_e4m3;  // cuda_fp8.h takes long to compile

namespace kiln::hopper {

namespace detail {

template <class T>
struct WgmmaType;
template <>
struct WgmmaType<__nv_bfloat16> {
  static constexpr char kName[] = "k16.f32.bf16.bf16";
  static constexpr bool kAcross = true;
};
template <>
struct WgmmaType<__half> {
  static constexpr char kName[] = "k16.f32.f16.f16";
  static constexpr bool kAcross = true;
};
template <>
struct WgmmaType<__nv_fp8_e4m3> {
  static constexpr char kName[] = "k32.f32.e4m3.e4m3";
  static constexpr bool kAcross = false;
};

/// How operands lie, for the types whose instruction asks.
template <class T, Lies rows_lie, Lies columns_lie>
struct WgmmaLies {
  static constexpr char kText[] = {',', ' ', rows_lie == Lies::across ? '1' : '0',
                                   ',', ' ', columns_lie == Lies::across ? '1' : '0',
                                   0};
};
template <class T, Lies rows_lie, Lies columns_lie>
  requires(!WgmmaType<T>::kAcross)
struct WgmmaLies<T, rows_lie, columns_lie> {
  static_assert(rows_lie == Lies::along_k && columns_lie == Lies::along_k,
                "8-bit operands lie along k");
  static constexpr char kText[] = "";
};

// Register lists and sums for N = 8, 16, ...; each continues the one before.
#define KILN_WGMMA_REGISTERS_1 "%0, %1, %2, %3"
#define KILN_WGMMA_SUMS_1 KILN_WGMMA_SUM(0)
#define KILN_WGMMA_REGISTERS_2 KILN_WGMMA_REGISTERS_1 ", %4, %5, %6, %7"
#define KILN_WGMMA_SUMS_2 KILN_WGMMA_SUMS_1, KILN_WGMMA_SUM(1)
#define KILN_WGMMA_REGISTERS_3 KILN_WGMMA_REGISTERS_2 ", %8, %9, %10, %11"
#define KILN_WGMMA_SUMS_3 KILN_WGMMA_SUMS_2, KILN_WGMMA_SUM(2)
#define KILN_WGMMA_REGISTERS_4 KILN_WGMMA_REGISTERS_3 ", %12, %13, %14, %15"
#define KILN_WGMMA_SUMS_4 KILN_WGMMA_SUMS_3, KILN_WGMMA_SUM(3)
#define KILN_WGMMA_REGISTERS_5 KILN_WGMMA_REGISTERS_4 ", %16, %17, %18, %19"
#define KILN_WGMMA_SUMS_5 KILN_WGMMA_SUMS_4, KILN_WGMMA_SUM(4)
#define KILN_WGMMA_REGISTERS_6 KILN_WGMMA_REGISTERS_5 ", %20, %21, %22, %23"
#define KILN_WGMMA_SUMS_6 KILN_WGMMA_SUMS_5, KILN_WGMMA_SUM(5)
#define KILN_WGMMA_REGISTERS_7 KILN_WGMMA_REGISTERS_6 ", %24, %25, %26, %27"
#define KILN_WGMMA_SUMS_7 KILN_WGMMA_SUMS_6, KILN_WGMMA_SUM(6)
#define KILN_WGMMA_REGISTERS_8 KILN_WGMMA_REGISTERS_7 ", %28, %29, %30, %31"
#define KILN_WGMMA_SUMS_8 KILN_WGMMA_SUMS_7, KILN_WGMMA_SUM(7)
#define KILN_WGMMA_REGISTERS_9 KILN_WGMMA_REGISTERS_8 ", %32, %33, %34, %35"
#define KILN_WGMMA_SUMS_9 KILN_WGMMA_SUMS_8, KILN_WGMMA_SUM(8)
#define KILN_WGMMA_REGISTERS_10 KILN_WGMMA_REGISTERS_9 ", %36, %37, %38, %39"
#define KILN_WGMMA_SUMS_10 KILN_WGMMA_SUMS_9, KILN_WGMMA_SUM(9)
#define KILN_WGMMA_REGISTERS_11 KILN_WGMMA_REGISTERS_10 ", %40, %41, %42, %43"
#define KILN_WGMMA_SUMS_11 KILN_WGMMA_SUMS_10, KILN_WGMMA_SUM(10)
#define KILN_WGMMA_REGISTERS_12 KILN_WGMMA_REGISTERS_11 ", %44, %45, %46, %47"
#define KILN_WGMMA_SUMS_12 KILN_WGMMA_SUMS_11, KILN_WGMMA_SUM(11)
#define KILN_WGMMA_REGISTERS_13 KILN_WGMMA_REGISTERS_12 ", %48, %49, %50, %51"
#define KILN_WGMMA_SUMS_13 KILN_WGMMA_SUMS_12, KILN_WGMMA_SUM(12)
#define KILN_WGMMA_REGISTERS_14 KILN_WGMMA_REGISTERS_13 ", %52, %53, %54, %55"
#define KILN_WGMMA_SUMS_14 KILN_WGMMA_SUMS_13, KILN_WGMMA_SUM(13)
#define KILN_WGMMA_REGISTERS_15 KILN_WGMMA_REGISTERS_14 ", %56, %57, %58, %59"
#define KILN_WGMMA_SUMS_15 KILN_WGMMA_SUMS_14, KILN_WGMMA_SUM(14)
#define KILN_WGMMA_REGISTERS_16 KILN_WGMMA_REGISTERS_15 ", %60, %61, %62, %63"
#define KILN_WGMMA_SUMS_16 KILN_WGMMA_SUMS_15, KILN_WGMMA_SUM(15)
#define KILN_WGMMA_REGISTERS_17 KILN_WGMMA_REGISTERS_16 ", %64, %65, %66, %67"
#define KILN_WGMMA_SUMS_17 KILN_WGMMA_SUMS_16, KILN_WGMMA_SUM(16)
#define KILN_WGMMA_REGISTERS_18 KILN_WGMMA_REGISTERS_17 ", %68, %69, %70, %71"
#define KILN_WGMMA_SUMS_18 KILN_WGMMA_SUMS_17, KILN_WGMMA_SUM(17)
#define KILN_WGMMA_REGISTERS_19 KILN_WGMMA_REGISTERS_18 ", %72, %73, %74, %75"
#define KILN_WGMMA_SUMS_19 KILN_WGMMA_SUMS_18, KILN_WGMMA_SUM(18)
#define KILN_WGMMA_REGISTERS_20 KILN_WGMMA_REGISTERS_19 ", %76, %77, %78, %79"
#define KILN_WGMMA_SUMS_20 KILN_WGMMA_SUMS_19, KILN_WGMMA_SUM(19)
#define KILN_WGMMA_REGISTERS_21 KILN_WGMMA_REGISTERS_20 ", %80, %81, %82, %83"
#define KILN_WGMMA_SUMS_21 KILN_WGMMA_SUMS_20, KILN_WGMMA_SUM(20)
#define KILN_WGMMA_REGISTERS_22 KILN_WGMMA_REGISTERS_21 ", %84, %85, %86, %87"
#define KILN_WGMMA_SUMS_22 KILN_WGMMA_SUMS_21, KILN_WGMMA_SUM(21)
#define KILN_WGMMA_REGISTERS_23 KILN_WGMMA_REGISTERS_22 ", %88, %89, %90, %91"
#define KILN_WGMMA_SUMS_23 KILN_WGMMA_SUMS_22, KILN_WGMMA_SUM(22)
#define KILN_WGMMA_REGISTERS_24 KILN_WGMMA_REGISTERS_23 ", %92, %93, %94, %95"
#define KILN_WGMMA_SUMS_24 KILN_WGMMA_SUMS_23, KILN_WGMMA_SUM(23)
#define KILN_WGMMA_REGISTERS_25 KILN_WGMMA_REGISTERS_24 ", %96, %97, %98, %99"
#define KILN_WGMMA_SUMS_25 KILN_WGMMA_SUMS_24, KILN_WGMMA_SUM(24)
#define KILN_WGMMA_REGISTERS_26 KILN_WGMMA_REGISTERS_25 ", %100, %101, %102, %103"
#define KILN_WGMMA_SUMS_26 KILN_WGMMA_SUMS_25, KILN_WGMMA_SUM(25)
#define KILN_WGMMA_REGISTERS_27 KILN_WGMMA_REGISTERS_26 ", %104, %105, %106, %107"
#define KILN_WGMMA_SUMS_27 KILN_WGMMA_SUMS_26, KILN_WGMMA_SUM(26)
#define KILN_WGMMA_REGISTERS_28 KILN_WGMMA_REGISTERS_27 ", %108, %109, %110, %111"
#define KILN_WGMMA_SUMS_28 KILN_WGMMA_SUMS_27, KILN_WGMMA_SUM(27)
#define KILN_WGMMA_REGISTERS_29 KILN_WGMMA_REGISTERS_28 ", %112, %113, %114, %115"
#define KILN_WGMMA_SUMS_29 KILN_WGMMA_SUMS_28, KILN_WGMMA_SUM(28)
#define KILN_WGMMA_REGISTERS_30 KILN_WGMMA_REGISTERS_29 ", %116, %117, %118, %119"
#define KILN_WGMMA_SUMS_30 KILN_WGMMA_SUMS_29, KILN_WGMMA_SUM(29)
#define KILN_WGMMA_REGISTERS_31 KILN_WGMMA_REGISTERS_30 ", %120, %121, %122, %123"
#define KILN_WGMMA_SUMS_31 KILN_WGMMA_SUMS_30, KILN_WGMMA_SUM(30)
#define KILN_WGMMA_REGISTERS_32 KILN_WGMMA_REGISTERS_31 ", %124, %125, %126, %127"
#define KILN_WGMMA_SUMS_32 KILN_WGMMA_SUMS_31, KILN_WGMMA_SUM(31)
#define KILN_WGMMA_SUM(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define KILN_WGMMA(n, tiles, a, b, add, type, lies)                                               \
  if constexpr (kTiles == tiles)                                                                  \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " add                                              \
               ", 0; wgmma.mma_async.sync.aligned.m64n" #n type " {" KILN_WGMMA_REGISTERS_##tiles \
               "}, " a ", " b ", p, 1, 1" lies "; }"                                              \
               : KILN_WGMMA_SUMS_##tiles                                                          \
               : "l"(rows.bits), "l"(columns.bits), "r"(static_cast<int>(adding)),                \
                 "C"(WgmmaType<T>::kName), "C"(WgmmaLies<T, rows_lie, columns_lie>::kText))

template <class T, Lies rows_lie, Lies columns_lie, int kTiles>
__device__ __forceinline__ void wgmma(float (&d)[kTiles][4], Operand rows, Operand columns,
                                      bool adding) {
  KILN_WGMMA(8, 1, "%4", "%5", "%6", "%7", "%8");
  KILN_WGMMA(16, 2, "%8", "%9", "%10", "%11", "%12");
  KILN_WGMMA(24, 3, "%12", "%13", "%14", "%15", "%16");
  KILN_WGMMA(32, 4, "%16", "%17", "%18", "%19", "%20");
  KILN_WGMMA(40, 5, "%20", "%21", "%22", "%23", "%24");
  KILN_WGMMA(48, 6, "%24", "%25", "%26", "%27", "%28");
  KILN_WGMMA(56, 7, "%28", "%29", "%30", "%31", "%32");
  KILN_WGMMA(64, 8, "%32", "%33", "%34", "%35", "%36");
  KILN_WGMMA(72, 9, "%36", "%37", "%38", "%39", "%40");
  KILN_WGMMA(80, 10, "%40", "%41", "%42", "%43", "%44");
  KILN_WGMMA(88, 11, "%44", "%45", "%46", "%47", "%48");
  KILN_WGMMA(96, 12, "%48", "%49", "%50", "%51", "%52");
  KILN_WGMMA(104, 13, "%52", "%53", "%54", "%55", "%56");
  KILN_WGMMA(112, 14, "%56", "%57", "%58", "%59", "%60");
  KILN_WGMMA(120, 15, "%60", "%61", "%62", "%63", "%64");
  KILN_WGMMA(128, 16, "%64", "%65", "%66", "%67", "%68");
  KILN_WGMMA(136, 17, "%68", "%69", "%70", "%71", "%72");
  KILN_WGMMA(144, 18, "%72", "%73", "%74", "%75", "%76");
  KILN_WGMMA(152, 19, "%76", "%77", "%78", "%79", "%80");
  KILN_WGMMA(160, 20, "%80", "%81", "%82", "%83", "%84");
  KILN_WGMMA(168, 21, "%84", "%85", "%86", "%87", "%88");
  KILN_WGMMA(176, 22, "%88", "%89", "%90", "%91", "%92");
  KILN_WGMMA(184, 23, "%92", "%93", "%94", "%95", "%96");
  KILN_WGMMA(192, 24, "%96", "%97", "%98", "%99", "%100");
  KILN_WGMMA(200, 25, "%100", "%101", "%102", "%103", "%104");
  KILN_WGMMA(208, 26, "%104", "%105", "%106", "%107", "%108");
  KILN_WGMMA(216, 27, "%108", "%109", "%110", "%111", "%112");
  KILN_WGMMA(224, 28, "%112", "%113", "%114", "%115", "%116");
  KILN_WGMMA(232, 29, "%116", "%117", "%118", "%119", "%120");
  KILN_WGMMA(240, 30, "%120", "%121", "%122", "%123", "%124");
  KILN_WGMMA(248, 31, "%124", "%125", "%126", "%127", "%128");
  KILN_WGMMA(256, 32, "%128", "%129", "%130", "%131", "%132");
}

#undef KILN_WGMMA
#undef KILN_WGMMA_SUM

}  // namespace detail

}  // namespace kiln::hopper
