// The three kinds of failure: the caller's mistake, the environment's, and Kiln's own.
//
//   try {
//     add_tuned(stream, out, a, b, n);
//   } catch (const kiln::UserError& error) {
//     fix(error.what());  // names what is wrong with the kernel or the call
//   } catch (const kiln::EnvironmentError& error) {
//     report(error.what());  // driver, compiler or disk, and what to do
//   }
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kiln/version.hpp"

namespace kiln {

enum class CandidateStatus;  // kiln/tune_result.hpp

/// Base of everything Kiln throws. Ordinary outcomes (a cache miss, a rejected candidate, a failed
/// compile of one candidate) are values and never throw.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller's mistake: a space, an argument, a template. The message names the field and value.
class UserError : public Error {
 public:
  using Error::Error;
};

/// The surroundings failed: driver, compiler library, disk, device. The message names the call, its
/// code, and what to do.
class EnvironmentError : public Error {
 public:
  using Error::Error;
};

/// Kiln broke one of its own rules. Please report it with the message.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// A launch on a stream that is being captured needs what is not loaded yet: see "Captures" in
/// docs/engine.md. Thrown before the stream is touched, so the capture goes on.
class CaptureError : public UserError {
 public:
  using UserError::UserError;
};

/// A compiler's refusal, as data.
struct CompileFailure {
  std::string kernel;                ///< printable instance, e.g. `gemm<float>{block_m=128,...}`
  std::string compiler;              ///< name and version
  std::vector<std::string> options;  ///< exactly as given to the compiler
  std::string log;                   ///< the compiler's own words
};

/// Thrown where one particular instance was asked for and its template does not compile.
class CompileError : public UserError {
 public:
  explicit CompileError(CompileFailure failure)
      : UserError(failure.kernel + " does not compile with " + failure.compiler + ":\n" +
                  failure.log),
        failure_(std::move(failure)) {}

  const CompileFailure& failure() const noexcept { return failure_; }

 private:
  CompileFailure failure_;
};

/// Thrown by tuning when not one candidate could be used. Carries each candidate's reason.
class TuningFailedError : public UserError {
 public:
  struct Reason {
    std::string config;  ///< e.g. `block=256,items=4`
    std::string reason;  ///< begins with the status
    CandidateStatus status;
  };

  TuningFailedError(const std::string& what, std::vector<Reason> reasons)
      : UserError(what), reasons_(std::move(reasons)) {}

  const std::vector<Reason>& reasons() const noexcept { return reasons_; }

 private:
  std::vector<Reason> reasons_;
};

}  // namespace kiln
