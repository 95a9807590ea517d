// Counts what threads open, wherever it lies, by the kernel's own account: a seccomp filter of
// the thread. What is counted fails with EACCES.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <system_error>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

namespace kiln::test {

class OpenedFiles {
 public:
  OpenedFiles() {
    opened() = 0;
    struct sigaction action = {};
    action.sa_sigaction = refuse;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSYS, &action, &before_);
  }
  ~OpenedFiles() { ::sigaction(SIGSYS, &before_, nullptr); }
  OpenedFiles(const OpenedFiles&) = delete;
  OpenedFiles& operator=(const OpenedFiles&) = delete;

  /// From now on this thread, and those that it starts, are counted until they end, which is
  /// while this lives.
  static void count_this_thread() {
    const auto trap_if = [](unsigned call) {
      return std::array<sock_filter, 2>{sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
                                        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)};
    };
    const auto at = trap_if(SYS_openat), at2 = trap_if(SYS_openat2);
    std::array filter{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                      at[0],
                      at[1],
                      at2[0],
                      at2[1],
#ifdef SYS_open
                      trap_if(SYS_open)[0],
                      trap_if(SYS_open)[1],
                      trap_if(SYS_creat)[0],
                      trap_if(SYS_creat)[1],
#endif
                      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      throw std::system_error(errno, std::generic_category(), "seccomp");
  }
  /// By all threads that are counted.
  std::size_t count() const { return opened(); }

 private:
  static std::atomic<std::size_t>& opened() {
    static std::atomic<std::size_t> count;
    return count;
  }
  static void refuse(int, siginfo_t*, void* context) {
    ++opened();
    auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
#ifdef __x86_64__
    registers.gregs[REG_RAX] = -EACCES;
#else
    registers.regs[0] = static_cast<unsigned long long>(-EACCES);
#endif
  }
  struct sigaction before_ = {};
};

}  // namespace kiln::test
