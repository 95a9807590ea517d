// The page holds its data whatever is in them.
#include "kiln/detail/installation.hpp"
#include "report_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

std::string data_in(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="data">)";
  const std::size_t at = page.find(begin) + begin.size();
  return page.substr(at, page.find("</script>", at) - at);
}

}  // namespace

TEST_CASE("No text ends the element that holds the data", "[report]") {
  TuneResult nice = some_result(), nasty = some_result();
  const std::string tag = "</script><script>alert(1)</script><!--<script>@PLOTS@@SCRIPT@\xff\"'&";
  nasty.kernel = tag;
  nasty.types = {tag};
  nasty.parameters[0] = tag;
  nasty.problem_fields[0] = tag;
  nasty.strategy = tag;
  nasty.warnings = {tag};
  nasty.versions = {{tag, tag}};
  nasty.candidates[4].reason = tag;
  nasty.enumerators = {{tag, {{256, tag}}}};
  Report plain, report;
  plain.add(nice, "memory");
  report.add(nasty, tag);
  const std::string page = report.html(), frame = plain.html();
  for (const char* part : {"<script", "</script", "<!--", "alert(1)</script"}) {
    INFO(part);
    CHECK(count(page, part) == count(frame, part));
  }
  CHECK(count(frame, "</script>") == 3);
  const std::string data = data_in(page);
  CHECK(data.find('<') == std::string::npos);
  CHECK(nlohmann::json::parse(data) == data_of(report));
  CHECK(nlohmann::json::parse(data)["problems"][0]["kernel"].get<std::string>().starts_with(
      "</script><script>alert(1)</script>"));
}

TEST_CASE("The page asks for nothing else", "[report]") {
  Report report;
  report.add(some_result());
  const std::string page = report.html();
  for (const char* part : {" src=", "@import", "<link", "url(http"}) {
    INFO(part);
    CHECK(page.substr(0, page.find("id=\"data\"")).find(part) == std::string::npos);
  }
  CHECK(page.find("default-src 'none'") != std::string::npos);
  CHECK(Report::has_plots() == (page.find("window.vegaEmbed=") != std::string::npos));
}
