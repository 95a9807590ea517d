// The judge: every thread is a fibre that runs on until it waits for others.
#include <memory>

#include <ucontext.h>

#include "generated/program.hpp"

namespace generated {
namespace {

using Op = Expression::Op;
using Kind = Statement::Kind;

enum class Flow { onward, leave_loop, next_round, exit };
enum class Wait { barrier, shuffle, none };

struct Fibre {
  ucontext_t context{};
  std::unique_ptr<char[]> stack;
  std::uint32_t thread = 0;
  Wait wait = Wait::barrier;
  std::uint32_t sent = 0, received = 0;
  std::vector<std::uint32_t> x;
  std::uint32_t cells[kCells] = {};
};

class Block {
 public:
  Block(const Program& program, const std::vector<std::uint32_t>& a, const Launch& launch,
        std::uint32_t index, std::uint32_t* out)
      : program_(program),
        a_(a),
        launch_(launch),
        index_(index),
        out_(out),
        shared_(launch.threads),
        fibres_(launch.threads) {}

  void run() {
    for (std::uint32_t t = 0; t < launch_.threads; ++t) start(t);
    while (resume_all()) meet();
  }

 private:
  static constexpr std::size_t kStack = 256 << 10;

  void start(std::uint32_t t) {
    Fibre& fibre = fibres_[t];
    fibre.thread = t;
    fibre.x.resize(program_.variables);
    fibre.stack.reset(new char[kStack]);
    ::getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.get();
    fibre.context.uc_stack.ss_size = kStack;
    fibre.context.uc_link = &home_;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    ::makecontext(&fibre.context, reinterpret_cast<void (*)()>(&Block::enter), 3,
                  static_cast<unsigned>(self), static_cast<unsigned>(self >> 32), t);
  }
  static void enter(unsigned low, unsigned high, unsigned thread) {
    auto* block = reinterpret_cast<Block*>(std::uintptr_t{high} << 32 | low);
    Fibre& fibre = block->fibres_[thread];
    block->thread(fibre);
    fibre.wait = Wait::none;
  }

  // Whether any thread waits for others.
  bool resume_all() {
    bool waiting = false;
    for (Fibre& fibre : fibres_) {
      if (fibre.wait == Wait::none) continue;
      ::swapcontext(&home_, &fibre.context);
      waiting |= fibre.wait != Wait::none;
    }
    return waiting;
  }

  // All threads that have not returned wait at one place.
  void meet() {
    std::uint32_t count = 0;
    for (const Fibre& fibre : fibres_) count += fibre.wait != Wait::none && fibre.sent != 0;
    for (Fibre& fibre : fibres_) {
      const std::uint32_t partner = fibre.thread ^ fibre.received;
      fibre.received = fibre.wait == Wait::shuffle ? fibres_[partner].sent : count;
    }
  }

  std::uint32_t wait(Fibre& fibre, Wait wait, std::uint32_t sent, std::uint32_t lanes = 0) {
    fibre.wait = wait;
    fibre.sent = sent;
    fibre.received = lanes;
    ::swapcontext(&fibre.context, &home_);
    return fibre.received;
  }

  void thread(Fibre& fibre) {
    if (run(fibre, program_.statements) == Flow::exit) return;
    for (std::uint32_t v = 0; v < kOutputs; ++v) output(fibre, v);
  }
  void output(Fibre& fibre, std::uint32_t v) {
    out_[(index_ * launch_.threads + fibre.thread) * kOutputs + v] = fibre.x[v];
  }

  std::uint32_t value(Fibre& f, const Expression& e) {
    const auto operand = [&](std::size_t i) { return value(f, e.operands[i]); };
    switch (e.op) {
      case Op::constant:
        return e.value;
      case Op::variable:
        return f.x[e.value];
      case Op::thread:
        return f.thread;
      case Op::block:
        return index_;
      case Op::argument:
        return launch_.n;
      case Op::element:
        return a_[f.x[e.value]];
      case Op::input:
        return a_[operand(0) % kInputs];
      case Op::cell:
        return f.cells[operand(0) % kCells];
      case Op::add:
        return operand(0) + operand(1);
      case Op::subtract:
        return operand(0) - operand(1);
      case Op::multiply:
        return operand(0) * operand(1);
      case Op::exclusive_or:
        return operand(0) ^ operand(1);
      case Op::conjunction:
        return operand(0) & operand(1);
      case Op::disjunction:
        return operand(0) | operand(1);
      case Op::left:
        return operand(0) << (operand(1) & 31);
      case Op::right:
        return operand(0) >> (operand(1) & 31);
      case Op::less:
        return operand(0) < operand(1);
      case Op::equal:
        return operand(0) == operand(1);
      case Op::choose:
        return operand(0) ? operand(1) : operand(2);
    }
    return 0;
  }

  Flow run(Fibre& f, const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) {
      if (const Flow flow = run(f, statement); flow != Flow::onward) return flow;
    }
    return Flow::onward;
  }

  // True where the loop goes on; `result` is what the loop ends with otherwise.
  bool round(Fibre& f, const std::vector<Statement>& body, Flow& result) {
    const Flow flow = run(f, body);
    result = flow == Flow::exit ? flow : Flow::onward;
    return flow == Flow::onward || flow == Flow::next_round;
  }

  Flow run(Fibre& f, const Statement& s) {
    std::uint32_t& x = f.x[s.variable];
    const auto e = [&](std::size_t i) { return value(f, s.e[i]); };
    Flow end = Flow::onward;
    switch (s.kind) {
      case Kind::assign:
        x = e(0);
        break;
      case Kind::assign_cell: {
        const std::uint32_t cell = e(0) % kCells;
        f.cells[cell] = e(1);
        break;
      }
      case Kind::branch:
        return run(f, e(0) ? s.body : s.other);
      case Kind::counted:
        for (x = 0; x < e(0); ++x)
          if (!round(f, s.body, end)) return end;
        break;
      case Kind::stride:
        for (x = f.thread + e(0); x < e(1); x += launch_.threads)
          if (!round(f, s.body, end)) return end;
        break;
      case Kind::scan:
        while (a_[(e(0) + x) % kInputs]) ++x;
        break;
      case Kind::repeat:
        x = 0;
        do {
          if (!round(f, s.body, end)) return end;
        } while (++x < e(0));
        break;
      case Kind::leave_loop:
        return e(0) ? Flow::leave_loop : Flow::onward;
      case Kind::next_round:
        return e(0) ? Flow::next_round : Flow::onward;
      case Kind::barrier:
        wait(f, Wait::barrier, 0);
        break;
      case Kind::count:
        x = wait(f, Wait::barrier, e(0));
        break;
      case Kind::until_none:
        while (wait(f, Wait::barrier, x < e(0))) {
          ++x;
          if (!round(f, s.body, end)) return end;
        }
        break;
      case Kind::publish:
        shared_[f.thread] = e(0);
        break;
      case Kind::collect:
        x = shared_[(f.thread + e(0)) % launch_.threads];
        break;
      case Kind::meet_in_rounds: {
        std::uint32_t& met = f.x[s.variable + 1];
        met = 0;
        for (x = 0; met < e(1); ++x) {
          run(f, s.body);
          if (a_[(e(0) + x) % kInputs]) continue;
          wait(f, Wait::barrier, 0);
          ++met;
          run(f, s.other);
        }
        break;
      }
      case Kind::shuffle:
        x = wait(f, Wait::shuffle, e(0), s.value);
        break;
      case Kind::exit:
        if (!e(0)) break;
        output(f, s.variable);
        return Flow::exit;
    }
    return Flow::onward;
  }

  const Program& program_;
  const std::vector<std::uint32_t>& a_;
  const Launch& launch_;
  std::uint32_t index_;
  std::uint32_t* out_;
  std::vector<std::uint32_t> shared_;
  std::vector<Fibre> fibres_;
  ucontext_t home_{};
};

}  // namespace

std::vector<std::uint32_t> interpret(const Program& program, const std::vector<std::uint32_t>& a,
                                     const Launch& launch) {
  std::vector<std::uint32_t> out(launch.blocks * launch.threads * kOutputs, kUntouched);
  for (std::uint32_t b = 0; b < launch.blocks; ++b) Block(program, a, launch, b, out.data()).run();
  return out;
}

}  // namespace generated
