#include "runtime/ranks/drive.hpp"

#include <chrono>
#include <deque>
#include <exception>

#include "kiln/detail/format.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/support/random.hpp"

namespace kiln::runtime::ranks {

namespace {

using Clock = std::chrono::steady_clock;

class Driver {
 public:
  Driver(Communicator& communicator, AgreementInput input, const Tasks& tasks)
      : communicator_(communicator), tasks_(tasks), agreement_(completed(std::move(input))) {}

  Conclusion run() {
    handle(Begin{});
    while (!agreement_.conclusion() || !actions_.empty()) {
      const Action action = std::move(actions_.front());
      actions_.pop_front();
      std::visit([this](const auto& a) { perform(a); }, action);
    }
    const Conclusion& conclusion = *agreement_.conclusion();
    for (const std::string& note : conclusion.notes) log(LogLevel::info, note);
    if (conclusion.kind == Conclusion::Kind::defaults)
      log(LogLevel::warning,
          detail::format("rank {} of {} uses default configs: {}", communicator_.rank(),
                         communicator_.size(), conclusion.why.describe()));
    return conclusion;
  }

 private:
  AgreementInput completed(AgreementInput input) const {
    input.rank = communicator_.rank();
    input.size = communicator_.size();
    input.settles = communicator_.settles();
    input.nonce = unpredictable_bits();
    return input;
  }

  Time now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  Deadline at(Time time) const { return deadline_after(start_, time); }

  void handle(const Event& event) {
    for (Action& a : agreement_.handle(event, now())) actions_.push_back(std::move(a));
  }

  void perform(const Exchange& e) {
    std::vector<std::byte> bytes = e.bytes;
    std::vector<float> values = e.values;
    Communicator::Failure failure;
    try {
      failure = exchange(e, bytes, values);
    } catch (const std::exception& error) {
      failure = RankFailure{RankFailure::Kind::system, {communicator_.rank()}, error.what()};
    } catch (...) {
      failure =
          RankFailure{RankFailure::Kind::system, {communicator_.rank()}, "the communicator failed"};
    }
    if (failure)
      handle(Failed{e.sequence, *failure});
    else
      handle(Completed{e.sequence, bytes, values});
  }

  Communicator::Failure exchange(const Exchange& e, std::vector<std::byte>& bytes,
                                 std::vector<float>& values) {
    switch (e.kind) {
      case Exchange::Kind::gather:
        bytes.resize(e.bytes.size() * static_cast<std::size_t>(communicator_.size()));
        return communicator_.gather(e.bytes, bytes, at(e.deadline));
      case Exchange::Kind::broadcast:
        return communicator_.broadcast(bytes, e.root, at(e.deadline));
      case Exchange::Kind::reduce_max:
        return communicator_.reduce(values, Reduction::max, at(e.deadline));
      default:
        return communicator_.reduce(values, Reduction::mean, at(e.deadline));
    }
  }

  void perform(const Work& work) {
    Worked done;
    try {
      done = tasks_.work(work, at(work.until));
    } catch (const std::exception& e) {
      done.trouble = *e.what() ? e.what() : "tuning failed";
    } catch (...) {
      done.trouble = kForeignException;
    }
    handle(done);
  }

  void perform(const Settle& s) {
    std::optional<bool> answer;
    try {
      answer = communicator_.settle(s.question, s.proposal, at(s.deadline));
    } catch (const std::exception& error) {
      log(LogLevel::warning, detail::format("ranks cannot settle: {}", error.what()));
    } catch (...) {
      log(LogLevel::warning, detail::format("ranks cannot settle: {}", kForeignException));
    }
    handle(Settled{answer});
  }

  void perform(const Abort& a) { communicator_.abort(a.why); }

  void perform(const Save& s) {
    if (!tasks_.save) return;
    try {
      tasks_.save(s.problems, agreement_.conclusion()->plan);
    } catch (const std::exception& e) {
      log(LogLevel::warning,
          detail::format("the agreed plan is used, but not saved: {}", e.what()));
    } catch (...) {
      log(LogLevel::warning,
          detail::format("the agreed plan is used, but not saved: {}", kForeignException));
    }
  }

  void perform(const Finish&) {}

  void log(LogLevel level, const std::string& text) const {
    if (tasks_.log) tasks_.log(level, text);
  }

  Communicator& communicator_;
  const Tasks& tasks_;
  const Clock::time_point start_ = Clock::now();
  Agreement agreement_;
  std::deque<Action> actions_;
};

}  // namespace

Conclusion agree(Communicator& communicator, AgreementInput input, const Tasks& tasks) {
  try {
    return Driver(communicator, std::move(input), tasks).run();
  } catch (const std::exception& e) {
    communicator.abort({RankFailure::Kind::aborted, {communicator.rank()}, e.what()});
    throw;
  } catch (...) {
    communicator.abort({RankFailure::Kind::aborted, {communicator.rank()}, kForeignException});
    throw;
  }
}

}  // namespace kiln::runtime::ranks
