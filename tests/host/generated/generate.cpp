#include <random>

#include "generated/program.hpp"

namespace generated {
namespace {

using Op = Expression::Op;
using Kind = Statement::Kind;

// Where a statement stands.
struct Place {
  bool together;  // all threads come here equally often
  bool in_loop;   // break and continue are allowed
  int depth;
};

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {
    program_.seed = seed;
    program_.shuffles = below(6) == 0;
  }

  Program program() {
    for (std::uint32_t v = 0; v < kOwn; ++v) assign(program_.statements, v, own(2));
    statements(program_.statements, {true, false, 0}, 4 + below(5));
    return std::move(program_);
  }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  std::uint32_t new_variable() { return program_.variables++; }
  std::uint32_t own_variable() { return below(kOwn); }

  static Expression constant(std::uint32_t value) { return {Op::constant, value}; }
  static Expression variable(std::uint32_t number) { return {Op::variable, number}; }
  static Expression binary(Op op, Expression a, Expression b) {
    return {op, 0, {std::move(a), std::move(b)}};
  }
  static void assign(std::vector<Statement>& out, std::uint32_t variable, Expression value) {
    out.push_back({Kind::assign, variable, 0, {std::move(value)}});
  }

  Op arithmetic() {
    constexpr Op ops[] = {Op::add,          Op::add,         Op::subtract,    Op::multiply,
                          Op::exclusive_or, Op::conjunction, Op::disjunction, Op::left,
                          Op::right,        Op::less,        Op::equal};
    return ops[below(std::size(ops))];
  }

  // A value of the thread's own.
  Expression own(int depth) {
    if (depth == 0 || below(4) == 0) {
      switch (below(7)) {
        case 0:
          return constant(below(3) ? below(8) : below(1u << 20));
        case 1:
          return {Op::thread};
        case 2:
          return equal(1);
        case 3:
          return counters_.empty() ? Expression{Op::argument}
                                   : variable(counters_[below(std::uint32_t(counters_.size()))]);
        default:
          return variable(own_variable());
      }
    }
    switch (below(8)) {
      case 0:
      case 1:
        return {Op::input, 0, {own(depth - 1)}};
      case 2:
        return {Op::cell, 0, {own(depth - 1)}};
      case 3:
        return {Op::choose, 0, {own(depth - 1), own(depth - 1), own(depth - 1)}};
      default:
        return binary(arithmetic(), own(depth - 1), own(depth - 1));
    }
  }

  // A value that all threads of the block that come here together have.
  Expression equal(int depth) {
    if (depth == 0 || below(3) == 0) {
      switch (below(5)) {
        case 0:
          return constant(below(8));
        case 1:
          return {Op::block};
        case 2:
          return {Op::argument};
        case 3:
          if (!shared_counters_.empty())
            return variable(shared_counters_[below(std::uint32_t(shared_counters_.size()))]);
          [[fallthrough]];
        default:
          return variable(kOwn + below(kEqual));
      }
    }
    return binary(arithmetic(), equal(depth - 1), equal(depth - 1));
  }
  // An expression over what is at hand: variables, and the element that `counter` is at.
  Expression simple(std::uint32_t counter, int depth) {
    if (depth > 0 && below(4)) {
      return binary(arithmetic(), simple(counter, depth - 1), simple(counter, depth - 1));
    }
    switch (below(6)) {
      case 0:
        return constant(below(8));
      case 1:
        return {Op::thread};
      case 2:
        return variable(counter);
      case 3:
        return {Op::element, counter};
      default:
        return variable(own_variable());
    }
  }
  // The threads go through the inputs side by side, each to an end of its own or all to the same.
  void stride(std::vector<Statement>& out) {
    const std::uint32_t counter = new_variable();
    const std::uint32_t ends = below(3);
    Expression end = ends == 0 ? constant(below(200))
                     : ends == 1
                         ? few(equal(1), 127)
                         : few(binary(Op::multiply, {Op::thread}, constant(below(64))), 255);
    Statement loop{Kind::stride, counter, 0, {constant(below(8)), std::move(end)}};
    for (std::uint32_t i = 0; i <= below(3); ++i)
      assign(loop.body, own_variable(), simple(counter, 2));
    if (below(4) == 0) loop.body.push_back({Kind::leave_loop, 0, 0, {rarely(own(1))}});
    out.push_back(std::move(loop));
    if (below(2)) assign(out, own_variable(), variable(counter));
  }
  // Where a scan of the inputs starts: a value that does not change during the scan, so it ends.
  Expression start() {
    switch (below(3)) {
      case 0:
        return constant(below(kInputs));
      case 1:
        return binary(Op::add, {Op::argument}, {Op::thread});
      default:
        return binary(Op::multiply, {Op::thread}, constant(1 + below(64)));
    }
  }
  Expression few(Expression value, std::uint32_t mask) {
    return binary(Op::conjunction, std::move(value), constant(mask));
  }
  Expression rarely(Expression value) {
    return binary(Op::equal, few(std::move(value), 3), constant(below(4)));
  }

  void statements(std::vector<Statement>& out, Place place, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      place.together&& below(2) ? meeting(out, place) : alone(out, place);
    }
  }

  std::vector<Statement> body(Place place) {
    std::vector<Statement> out;
    ++place.depth;
    statements(out, place, 1 + below(place.depth > 2 ? 2 : 3));
    return out;
  }

  // Without a barrier; `place` may be one that threads come to by ways of their own.
  void alone(std::vector<Statement>& out, Place place) {
    const Place inner{false, place.in_loop && !place.together, place.depth};
    const std::uint32_t choice = below(place.depth >= 4 ? 4 : 13);
    switch (choice) {
      case 3:
        out.push_back({Kind::assign_cell, 0, 0, {own(1), own(2)}});
        return;
      case 4:
      case 5: {
        Statement branch{Kind::branch, 0, 0, {own(2)}, body(inner)};
        if (below(2)) branch.other = body(inner);
        out.push_back(std::move(branch));
        return;
      }
      case 6:
      case 7:
      case 8: {
        // A counter of its own, or a cursor that lives on.
        const bool counted = choice == 6;
        const std::uint32_t counter = counted ? new_variable() : own_variable();
        const Kind kind = counted ? Kind::counted : choice == 7 ? Kind::scan : Kind::repeat;
        Statement loop{kind,
                       counted || kind == Kind::scan ? counter : new_variable(),
                       0,
                       {kind == Kind::scan ? start() : few(own(2), 7)}};
        if (kind != Kind::scan) {
          counters_.push_back(loop.variable);
          loop.body = body({false, true, place.depth});
          counters_.pop_back();
        }
        out.push_back(std::move(loop));
        if (kind == Kind::scan)
          assign(out, counter, binary(Op::add, variable(counter), constant(1)));
        return;
      }
      case 11:
      case 12:
        return stride(out);
      case 9:
      case 10:
        if (place.in_loop && !place.together) {
          out.push_back(
              {choice == 9 ? Kind::leave_loop : Kind::next_round, 0, 0, {rarely(own(2))}});
          return;
        }
        [[fallthrough]];
      default:
        assign(out, own_variable(), own(3));
    }
  }

  // With barriers, where all threads come equally often.
  void meeting(std::vector<Statement>& out, Place place) {
    switch (below(place.depth >= 3 ? 6 : 12)) {
      case 0:
        out.push_back({Kind::barrier});
        return;
      case 1:
        assign(out, kOwn + below(kEqual), equal(2));
        return;
      case 2:
        if (program_.shuffles) {
          out.push_back({Kind::shuffle, own_variable(), 1u << below(5), {own(2)}});
        } else {
          out.push_back(
              {Kind::count, below(2) ? own_variable() : kOwn + below(kEqual), 0, {own(2)}});
        }
        return;
      case 3:
        if (!program_.shuffles && below(3) == 0) {
          out.push_back({Kind::exit, own_variable(), 0, {rarely(own(2))}});
          return;
        }
        [[fallthrough]];
      case 4:
      case 5:
        exchange(out, place);
        return;
      case 6: {
        Statement branch{Kind::branch, 0, 0, {equal(2)}, body(place)};
        if (below(2)) branch.other = body(place);
        out.push_back(std::move(branch));
        return;
      }
      case 7: {
        const std::uint32_t counter = new_variable();
        Statement loop{Kind::until_none, counter, 0, {few(own(2), 3)}};
        assign(out, counter, constant(0));
        loop.body = within(counter, place);
        out.push_back(std::move(loop));
        return;
      }
      case 8: {
        const std::uint32_t rounds = new_variable();
        new_variable();  // the meetings so far
        Statement loop{
            Kind::meet_in_rounds, rounds, 0, {constant(below(kInputs)), few(equal(2), 3)}};
        counters_.push_back(rounds);
        loop.body = body({false, false, place.depth});
        loop.other = body({false, false, place.depth});
        counters_.pop_back();
        out.push_back(std::move(loop));
        return;
      }
      default: {
        const bool repeat = below(3) == 0;
        const std::uint32_t counter = new_variable();
        Statement loop{repeat ? Kind::repeat : Kind::counted, counter, 0, {few(equal(2), 3)}};
        loop.body = within(counter, place);
        out.push_back(std::move(loop));
      }
    }
  }

  // The body of a loop that all threads turn equally often.
  std::vector<Statement> within(std::uint32_t counter, Place place) {
    shared_counters_.push_back(counter);
    std::vector<Statement> out = body({true, true, place.depth});
    if (below(3) == 0)
      out.push_back({below(2) ? Kind::leave_loop : Kind::next_round, 0, 0, {rarely(equal(2))}});
    if (below(2)) meeting(out, {true, true, 4});
    // The next round is begun early by some: nothing but their own work is left of this one.
    if (below(3) == 0) {
      out.push_back({Kind::next_round, 0, 0, {own(2)}});
      alone(out, {false, false, place.depth + 1});
    }
    shared_counters_.pop_back();
    return out;
  }

  void exchange(std::vector<Statement>& out, Place place) {
    const Place between{false, false, place.depth + 1};
    out.push_back({Kind::publish, 0, 0, {own(2)}});
    if (below(3) == 0) alone(out, between);
    out.push_back({Kind::barrier});
    if (below(3) == 0) alone(out, between);
    out.push_back({Kind::collect, own_variable(), 0, {own(1)}});
    if (below(3) == 0) alone(out, between);
    out.push_back({Kind::barrier});
  }

  std::mt19937_64 random_;
  Program program_;
  std::vector<std::uint32_t> counters_, shared_counters_;
};

}  // namespace

Program generate(std::uint64_t seed) { return Generator(seed).program(); }

}  // namespace generated
