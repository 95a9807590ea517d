#include "runtime/build/compile_service.hpp"

#include <exception>
#include <filesystem>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "codegen/llvm_plugin.hpp"
#include "kiln/error.hpp"
#include "kiln/version.hpp"
#include "runtime/processes/frame.hpp"

namespace kiln::runtime {

namespace {

namespace fs = std::filesystem;

enum class Answered : std::uint64_t {
  binary,
  refused,
  user_error,
  environment_error,
  internal_error
};

std::uint64_t number_of(Target::Kind kind) { return kind == Target::Kind::cuda ? 0 : 1; }

Target::Kind kind_of(std::uint64_t number) {
  if (number > 1) throw BrokenFrame("a target of unknown kind");
  return number == 0 ? Target::Kind::cuda : Target::Kind::host;
}

std::string working_folder() {
  std::error_code error;
  return fs::current_path(error).string();
}

struct Request {
  std::string folder;
  codegen::Source source;
  Target target;
};

/// The parts of a source that a compilation reads, in the order in which they are sent. Keys, and
/// what they are made of, are not sent.
template <class Source, class Each>
void for_each_part(Source& s, const Each& each) {
  each(s.text), each(s.path), each(s.entry), each(s.signature);
  each(s.label), each(s.kernel), each(s.config);
  each(s.steps), each(s.include_dirs), each(s.options), each(s.definitions);
  each(s.values), each(s.cacheable);
}

struct PartWriter {
  FieldWriter& fields;
  void operator()(const std::string& text) const { fields.text(text); }
  void operator()(const std::vector<std::string>& texts) const { fields.texts(texts); }
  void operator()(const std::vector<std::int64_t>& values) const {
    fields.integer(values.size());
    for (const std::int64_t value : values) fields.integer(static_cast<std::uint64_t>(value));
  }
  void operator()(const bool& flag) const { fields.integer(flag ? 1 : 0); }
};

struct PartReader {
  FieldReader& fields;
  void operator()(std::string& text) const { text = fields.text(); }
  void operator()(std::vector<std::string>& texts) const { texts = fields.texts(); }
  void operator()(std::vector<std::int64_t>& values) const {
    for (std::uint64_t left = fields.integer(); left > 0; --left)
      values.push_back(static_cast<std::int64_t>(fields.integer()));
  }
  void operator()(bool& flag) const { flag = fields.integer() != 0; }
};

Request unpack_request(std::span<const std::byte> bytes) {
  FieldReader fields(bytes);
  Request r;
  r.folder = fields.text();
  r.target.kind = kind_of(fields.integer());
  r.target.arch = fields.text();
  for_each_part(r.source, PartReader{fields});
  fields.finish();
  return r;
}

std::vector<std::byte> failed(Answered how, const std::string& what) {
  return FieldWriter().integer(static_cast<std::uint64_t>(how)).text(what).finish();
}

/// Compilations side by side have to agree on a working folder.
class WorkingFolder {
 public:
  template <class Work>
  auto within(const std::string& folder, const Work& work) {
    for (;;) {
      std::shared_lock shared(mutex_);
      if (folder.empty() || folder == folder_) return work();
      shared.unlock();
      const std::unique_lock alone(mutex_);
      std::error_code error;
      fs::current_path(folder, error);
      if (error)
        throw EnvironmentError("the process that compiles cannot work in " + folder + ": " +
                               error.message());
      folder_ = folder;
    }
  }

 private:
  std::shared_mutex mutex_;
  std::string folder_ = working_folder();
};

class CompileDesk {
 public:
  using Open = std::function<std::unique_ptr<codegen::Compiler>(const CompilerPlace&)>;
  explicit CompileDesk(Open open) : open_(std::move(open)) {}

  std::vector<std::byte> begin(std::span<const std::byte> setup) {
    CompilerGreeting greeting;
    try {
      const CompilerPlace place = CompilerPlace::unpack(setup);
      compiler_ = open_(place);
      greeting.identity = identity_of(*compiler_);
    } catch (const std::exception& error) {
      greeting.obstacle = error.what();
    }
    return greeting.pack();
  }

  std::vector<std::byte> answer(std::span<const std::byte> request) noexcept {
    try {
      return compile(unpack_request(request));
    } catch (const UserError& error) {
      return failed(Answered::user_error, error.what());
    } catch (const InternalError& error) {
      return failed(Answered::internal_error, error.what());
    } catch (const std::exception& error) {
      return failed(Answered::environment_error, error.what());
    }
  }

 private:
  std::vector<std::byte> compile(const Request& request) {
    if (!compiler_) throw InternalError("a process is asked to compile without a compiler");
    const codegen::CompileResult result = folder_.within(
        request.folder, [&] { return compiler_->compile(request.source, request.target); });
    FieldWriter fields;
    if (const auto* binary = std::get_if<codegen::Binary>(&result))
      return fields.integer(static_cast<std::uint64_t>(Answered::binary))
          .bytes(codegen::serialize(*binary))
          .finish();
    const auto& refused = std::get<CompileFailure>(result);
    return fields.integer(static_cast<std::uint64_t>(Answered::refused))
        .text(refused.log)
        .text(refused.kernel)
        .text(refused.compiler)
        .texts(refused.options)
        .finish();
  }

  Open open_;
  std::unique_ptr<codegen::Compiler> compiler_;
  WorkingFolder folder_;
};

}  // namespace

std::vector<std::byte> CompilerPlace::pack() const {
  return FieldWriter()
      .integer(number_of(kind))
      .text(nvrtc.library)
      .texts(nvrtc.cuda_roots)
      .integer(nvrtc.use_nvrtc_cache ? 1 : 0)
      .texts(plugins)
      .finish();
}

CompilerPlace CompilerPlace::unpack(std::span<const std::byte> bytes) {
  FieldReader fields(bytes);
  CompilerPlace place;
  place.kind = kind_of(fields.integer());
  place.nvrtc.library = fields.text();
  place.nvrtc.cuda_roots = fields.texts();
  place.nvrtc.use_nvrtc_cache = fields.integer() != 0;
  place.plugins = fields.texts();
  fields.finish();
  return place;
}

std::vector<std::byte> CompilerGreeting::pack() const {
  return FieldWriter().text(obstacle).text(identity).finish();
}

CompilerGreeting CompilerGreeting::unpack(std::span<const std::byte> bytes) {
  FieldReader fields(bytes);
  CompilerGreeting greeting;
  greeting.obstacle = fields.text();
  greeting.identity = fields.text();
  fields.finish();
  return greeting;
}

std::string identity_of(const codegen::Compiler& compiler) {
  const codegen::CompilerIdentity identity = compiler.identity();
  std::string text =
      "kiln " KILN_VERSION ", " + identity.name + " " + identity.version + ", " + identity.build;
  for (const std::string& folder : compiler.header_folders()) text += ", " + folder;
  return text;
}

std::vector<std::byte> pack_request(const codegen::Source& source, const Target& target) {
  FieldWriter fields;
  fields.text(working_folder()).integer(number_of(target.kind)).text(target.arch);
  for_each_part(source, PartWriter{fields});
  return fields.finish();
}

codegen::CompileResult unpack_answer(std::span<const std::byte> answer, const Target& target) {
  FieldReader fields(answer);
  const auto how = static_cast<Answered>(fields.integer());
  if (how == Answered::binary) {
    const auto bytes = fields.bytes();
    fields.finish();
    auto binary = codegen::parse_binary(std::vector<std::byte>(bytes.begin(), bytes.end()));
    if (!binary || binary->target != target) throw BrokenFrame("a binary for another target");
    return *std::move(binary);
  }
  const std::string text = fields.text();
  if (how == Answered::refused) {
    CompileFailure failure;
    failure.log = text;
    failure.kernel = fields.text();
    failure.compiler = fields.text();
    failure.options = fields.texts();
    fields.finish();
    return failure;
  }
  fields.finish();
  if (how == Answered::user_error) throw UserError(text);
  if (how == Answered::environment_error) throw EnvironmentError(text);
  if (how == Answered::internal_error) throw InternalError(text);
  throw BrokenFrame("an answer of unknown kind");
}

Service compile_service(
    std::function<std::unique_ptr<codegen::Compiler>(const CompilerPlace&)> open) {
  const auto desk = std::make_shared<CompileDesk>(std::move(open));
  return {[desk](std::span<const std::byte> setup) { return desk->begin(setup); },
          [desk](std::span<const std::byte> request) { return desk->answer(request); }};
}

std::unique_ptr<codegen::Compiler> open_compiler(const CompilerPlace& place, Opening opening) {
  if (place.kind == Target::Kind::host) {
    const std::vector<fs::path> plugins(place.plugins.begin(), place.plugins.end());
    if (opening == Opening::at_once)
      if (const std::string obstacle = codegen::host_compiler_obstacle(plugins); !obstacle.empty())
        throw EnvironmentError(obstacle);
    return codegen::make_host_compiler(plugins);
  }
  codegen::NvrtcProbe nvrtc = codegen::NvrtcCompiler::find(place.nvrtc);
  if (!nvrtc.compiler) throw EnvironmentError(nvrtc.reason);
  return std::move(nvrtc.compiler);
}

}  // namespace kiln::runtime
