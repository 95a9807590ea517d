// A process that compiles, whose compiler does as the source says. Tests start it in the place of
// kiln-compiler, by names that say what is wrong with the process itself.
#include "odd_compiler.hpp"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/build/compile_service.hpp"
#include "runtime/processes/frame.hpp"

namespace {

using namespace kiln;

void write_raw(const std::vector<std::byte>& bytes) {
  static_cast<void>(::send(0, bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

void write_raw(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  write_raw(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

[[noreturn]] void loop() {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

/// True the first time that it is called with this file.
bool first(const std::string& file) {
  if (std::filesystem::exists(file)) return false;
  std::ofstream{file} << "was here";
  return true;
}

/// Starts a process outside of this one's group that keeps the channel open while the file is there.
void leave(const std::string& file) {
  const pid_t left = ::fork();
  if (left > 0) return static_cast<void>(::setpgid(left, left));
  while (std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::_exit(0);
}

std::string descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1000; ++fd) count += ::fcntl(fd, F_GETFD) != -1;
  return std::to_string(count);
}

class OddCompiler final : public test::OddCompiler {
 public:
  codegen::CompileResult compile(const codegen::Source& source, const Target& target) override {
    std::istringstream words(source.text);
    std::string verb, rest;
    words >> verb;
    std::getline(words >> std::ws, rest);
    if (verb == "abort") std::abort();
    if (verb == "exit") std::exit(std::stoi(rest));
    if (verb == "crash") ::signal(SIGSEGV, SIG_DFL), ::raise(SIGSEGV);
    if (verb == "kill") ::raise(std::stoi(rest));
    if (verb == "loop") loop();
    if (verb == "say") std::fprintf(stderr, "%s\n", std::string(1 << 17, '.').append(rest).c_str());
    if (verb == "say") std::abort();
    if (verb == "leave") leave(rest), std::abort();
    if (verb == "once" && first(rest)) ::raise(SIGKILL);
    if (verb == "twice" && (first(rest) || first(rest + "-2"))) ::raise(SIGKILL);
    if (verb == "garbage") write_raw("this is no answer, it is what a library printed"), loop();
    if (verb == "truncated") {
      std::vector<std::byte> whole;
      runtime::put_frame(whole, runtime::FrameKind::answer, 1, std::vector<std::byte>(1000));
      whole.resize(500);
      write_raw(whole);
      ::_exit(0);
    }
    if (verb == "unasked") {
      std::vector<std::byte> frame;
      runtime::put_frame(frame, runtime::FrameKind::answer, 123456,
                         runtime::FieldWriter().integer(0).bytes({}).finish());
      write_raw(frame), loop();
    }
    if (verb == "user-error") throw UserError("the user's");
    if (verb == "environment-error") throw EnvironmentError("the environment's");
    if (verb == "internal-error") throw InternalError("Kiln's");
    if (verb == "no-memory") throw std::bad_alloc();
    if (verb == "refuse")
      return CompileFailure{source.label, "odd 1", {"-x", ""}, "error: " + rest};
    if (verb == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(rest)));
    std::string code = source.text;
    if (verb == "folder") code = std::filesystem::current_path().string();
    if (verb == "descriptors") code = descriptors();
    if (verb == "id") code = std::to_string(::getpid());
    codegen::Binary binary = test::binary_of(code, target);
    if (verb == "other-target") binary.target.arch = "another";
    return binary;
  }
};

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string name = std::filesystem::path(arguments[0]).filename();
  if (name == "exits") return 9;
  if (name == "says-garbage") write_raw("Usage: something else\n"), loop();
  if (name == "says-nothing") loop();
  return runtime::serve(argument_count, arguments,
                        runtime::compile_service([&](const runtime::CompilerPlace&) {
                          if (name == "cannot-open") throw EnvironmentError("no such library");
                          auto compiler = std::make_unique<OddCompiler>();
                          if (name == "of-another-build") compiler->build = "2";
                          return compiler;
                        }));
}
