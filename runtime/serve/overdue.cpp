#include "runtime/serve/overdue.hpp"

#include <memory>
#include <utility>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

using detail::format;

namespace {

std::string text_of(const std::string& subject, const Overdue& late) {
  const char* const what_follows = late.rejected ? "; it is rejected" : "";
  if (late.returned)
    return format("{} with {}: it has ended after {:.3g} s{}", subject, late.text, late.seconds,
                  what_follows);
  return format(
      "{} with {}: it has taken {:.3g} s so far, and {:.3g} s is the limit; nothing can end "
      "it{}",
      subject, late.text, late.seconds, late.limit, what_follows);
}

}  // namespace

WatchedBench::Tell tell_of_overdue(detail::Engine& engine, std::string subject,
                                   std::function<void(const std::string&)> also) {
  return [&engine, subject = std::move(subject), also = std::move(also),
          told = false](const Overdue& late) mutable {
    Counters& counters = engine.workshop().telemetry().counters;
    if (late.returned)
      --counters.overdue;
    else if (!std::exchange(told, true))
      ++counters.overdue, ++counters.overdue_total;
    if (late.returned) told = false;
    const std::string text = text_of(subject, late);
    if (also) also(text);
    engine.log(LogLevel::warning, text);
  };
}

}  // namespace kiln::runtime
