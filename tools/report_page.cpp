#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "kiln/report.hpp"
#include "tools/checks.hpp"
#include "tools/commands.hpp"
#include "tools/output.hpp"
#include "tools/problems.hpp"
#include "tools/terminal.hpp"

namespace kiln::tools {

namespace {

using kiln::detail::format;

struct ReportRequest {
  std::vector<std::string> sources;
  std::string output, problems_file;
};

/// The rest is in the report.
constexpr std::size_t kMostPassedOver = 5;

void say_passed_over(const Report& report) {
  const auto& passed = report.passed_over();
  for (std::size_t i = 0; i < std::min(passed.size(), kMostPassedOver); ++i)
    say_error(format("warning: passed over {}: {}", passed[i].path.string(), passed[i].why));
  if (passed.size() > kMostPassedOver)
    say_error(
        format("warning: and {} more, which the report lists", passed.size() - kMostPassedOver));
}

/// A plain file of its own appears whole or not at all; what else is there is written to in place.
void write(const std::string& file, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status there = fs::symlink_status(file, error);
  const fs::path folder = fs::absolute(file, error).parent_path();
  const bool replaces =
      ::access(folder.c_str(), W_OK) == 0 &&
      (!fs::exists(there) || (fs::is_regular_file(there) && fs::hard_link_count(file, error) == 1));
  const std::string part = replaces ? format("{}.part-{}", file, ::getpid()) : file;
  errno = 0;
  std::ofstream out(part, std::ios::binary);
  out << text;
  out.close();
  int code = out ? 0 : errno != 0 ? errno : EIO;
  if (code == 0 && replaces) {
    if (fs::exists(there)) fs::permissions(part, there.permissions(), error);
    if (std::rename(part.c_str(), file.c_str()) == 0) return;
    code = errno;
  }
  if (code == 0) return;
  if (replaces) fs::remove(part, error);
  throw EnvironmentError(format("--output: {} cannot be written: {}", file, std::strerror(code)));
}

int run_report(const Context& context, const ReportRequest& request) {
  if (request.output.empty() && !context.json)
    throw UserError("give --output FILE for a page, or --json for the data");
  if (!request.output.empty()) check_writable("--output", request.output);
  Report report;
  if (!request.problems_file.empty())
    for (const NamedProblem& p : read_problems(request.problems_file, context.registry))
      report.weigh(p.kernel.name, p.kernel.types, p.kernel.bucketed(p.problem), p.weight);
  for (const std::string& source : request.sources) report.read(source);
  if (!request.output.empty()) write(request.output, report.html());
  say_passed_over(report);
  if (!request.output.empty() && !Report::has_plots())
    say_error(
        "warning: the report has tables, but no plots: this Kiln was built without them "
        "(scripts/setup, and the option `plots`)");
  if (context.json)
    tools::print(report.json() + "\n");
  else
    tools::print(format("{}: {} results\n", request.output, report.results()));
  return kDone;
}

}  // namespace

void add_report(CLI::App& app, Context& context) {
  auto* report = app.add_subcommand(
      "report", "Make one HTML file of results: candidates, searches, gains, why each other lost");
  const auto request = std::make_shared<ReportRequest>();
  report
      ->add_option("sources", request->sources,
                   "Cache folders, bundles, records, what `kiln tune --json` printed, ranks' logs, "
                   "or folders of such files")
      ->required();
  report->add_option("-o,--output", request->output, "The page to write");
  report->add_option("--problems", request->problems_file,
                     "JSON file with problems and how often each is launched (`weight`)");
  report->add_flag("--json", context.json, "Print the data of the page");
  report->callback([&context, request] {
    context.run = [&context, request] { return run_report(context, *request); };
  });
}

}  // namespace kiln::tools
