// The exit codes of the command, in one table: --help, `kiln reference`, errors in JSON and
// docs/reference.md all have them from here.
#pragma once

namespace kiln::tools {

enum ExitCode {
  kDone = 0,
  kUserError = 1,
  kEnvironmentError = 2,
  kInternalError = 3,
  kIncomplete = 4,
  kInterrupted = 130
};

struct ExitMeaning {
  ExitCode code;
  const char* kind;     ///< of the error, in JSON; empty when the code is not for an error
  const char* meaning;  ///< a few words
  const char* detail;   ///< more of it, or empty; Markdown
};

inline constexpr ExitMeaning kExitCodes[] = {
    {kDone, "", "done", ""},
    {kUserError, "user", "your mistake", "the message names the argument, field or value"},
    {kEnvironmentError, "environment", "the environment",
     "a driver, compiler, disk or rank failed, or `verify` found damage"},
    {kInternalError, "internal", "a bug in Kiln", "or a tuned kernel's launch gave a wrong result"},
    {kIncomplete, "", "done, but incomplete",
     "at least one problem of `tune --max-seconds` failed, or is not as `prepare "
     "--require-complete` asks for; the answer says why"},
    {kInterrupted, "", "interrupted",
     "what was measured or compiled is kept; of several ranks, what they agreed on"},
};

}  // namespace kiln::tools
