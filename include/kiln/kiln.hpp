// All of Kiln's public API. Its headers need Boost's (Boost.Hana), 1.81 or newer.
#pragma once

#include "kiln/version.hpp"  // first: it says which C++ this needs

#if !__has_include(<boost/version.hpp>)
#error "Kiln needs the headers of Boost.Hana, 1.81 or newer: none are on the include path"
#endif
#include <boost/version.hpp>
#if BOOST_VERSION < 108100
#error "Kiln needs the headers of Boost.Hana, 1.81 or newer: those on the include path are older"
#endif

#include "kiln/bound.hpp"
#include "kiln/bundle.hpp"
#include "kiln/cache.hpp"
#include "kiln/communicator.hpp"
#include "kiln/communicators.hpp"
#include "kiln/config.hpp"
#include "kiln/definition.hpp"
#include "kiln/device.hpp"
#include "kiln/doctor.hpp"
#include "kiln/dynamic_space.hpp"
#include "kiln/epilogue.hpp"
#include "kiln/error.hpp"
#include "kiln/function.hpp"
#include "kiln/handle.hpp"
#include "kiln/kernel.hpp"
#include "kiln/key.hpp"
#include "kiln/launch_rule.hpp"
#include "kiln/log.hpp"
#include "kiln/manifest.hpp"
#include "kiln/measure.hpp"
#include "kiln/metrics.hpp"
#include "kiln/missing.hpp"
#include "kiln/named.hpp"
#include "kiln/occupancy.hpp"
#include "kiln/paths.hpp"
#include "kiln/precompile.hpp"
#include "kiln/problem_values.hpp"
#include "kiln/ranks.hpp"
#include "kiln/recorded.hpp"
#include "kiln/reflect.hpp"
#include "kiln/region.hpp"
#include "kiln/registry.hpp"
#include "kiln/replay.hpp"
#include "kiln/report.hpp"
#include "kiln/roofline.hpp"
#include "kiln/runtime.hpp"
#include "kiln/space.hpp"
#include "kiln/space_query.hpp"
#include "kiln/store.hpp"
#include "kiln/symbol.hpp"
#include "kiln/target.hpp"
#include "kiln/tensor_map.hpp"
#include "kiln/trace.hpp"
#include "kiln/tune.hpp"
#include "kiln/types.hpp"
#include "kiln/workload.hpp"
