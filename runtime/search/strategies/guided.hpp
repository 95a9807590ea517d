// A strategy written as one straight coroutine that asks for times; this is the machine under it.
//
//   Search search() override {
//     std::vector<Point> points = ...;
//     const std::vector<double> times = co_await ask(points);  // proposes, waits for the times
//   }
#pragma once

#include <coroutine>
#include <deque>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/search/history.hpp"

namespace kiln::runtime {

/// The body of a guided search, or a part of one: `co_await` on it runs it to its end.
class [[nodiscard]] Search {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct promise_type {
    std::coroutine_handle<> caller = std::noop_coroutine();
    std::exception_ptr error;

    struct ToCaller {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(Handle self) const noexcept {
        return self.promise().caller;
      }
      void await_resume() const noexcept {}
    };

    Search get_return_object() { return Search(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    ToCaller final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }
  };

  Search() = default;
  Search(Search&& other) noexcept : self_(std::exchange(other.self_, {})) {}
  Search& operator=(Search&& other) noexcept {
    std::swap(self_, other.self_);
    return *this;
  }
  ~Search() {
    if (self_) self_.destroy();
  }

  Handle handle() const noexcept { return self_; }
  bool done() const noexcept { return self_.done(); }
  /// @throws what the body threw.
  void check() const {
    if (self_.promise().error) std::rethrow_exception(self_.promise().error);
  }

  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) const noexcept {
    self_.promise().caller = caller;
    return self_;
  }
  void await_resume() const { check(); }

 private:
  explicit Search(Handle self) : self_(self) {}
  Handle self_;
};

struct Member {
  Point point;
  double seconds = 0;
};

/// Proposes what `search()` asks for. While that waits for results, and after it has ended, random
/// points that are still unseen are proposed; when none are left, the search is over.
class Guided : public Strategy {
 public:
  std::vector<Values> propose(std::size_t count) final;
  void observe(std::span<const std::int64_t> config, double seconds) final;

 protected:
  explicit Guided(const SearchProblem& search);

  /// Starts at the first proposal, so what was observed before is known to it. Each turn of an
  /// endless loop must ask for something; asking for what is known is free, but a search that
  /// asks for nothing new for long is given a random point to pay for.
  virtual Search search() = 0;

  class [[nodiscard]] Asked {
   public:
    Asked(Guided& guided, std::vector<Point> points)
        : guided_(guided), points_(std::move(points)) {}
    bool await_ready() { return guided_.begin(points_); }
    void await_suspend(std::coroutine_handle<> asker) { guided_.asker_ = asker; }
    /// In the order of the points; infinite for those that cannot be used.
    std::vector<double> await_resume() const;

   private:
    Guided& guided_;
    std::vector<Point> points_;
  };
  Asked ask(std::vector<Point> points) { return {*this, std::move(points)}; }

  /// Unseen points to start from, best guess first: the promising ones by the cost model.
  std::vector<Point> seeds(std::size_t count);
  /// Asks for seeds. Afterwards `members` holds them and the best point so far, fastest first;
  /// empty when no point is unseen and none could be used.
  Search start(std::vector<Member>& members, std::size_t count);
  /// `child` with values taken back from the allowed `parent` until it is allowed.
  Point repaired(Point child, const Point& parent);
  /// `point` changed to an allowed one, to an unseen one if there is one near: by a step in one
  /// parameter, any change of one, or a change of two. `point` itself if there is no other.
  Point mutated(const Point& point, double any_value);
  /// Moves to better adjacent points until there is none; where constraints leave none adjacent,
  /// to any other value of one parameter, or of two.
  Search climb(Member& at);

  const SearchProblem problem_;
  const SearchSpace& space_;
  History history_;
  Random random_;
  std::size_t batch_ = 1;  ///< what the last proposal was asked for

 private:
  bool begin(const std::vector<Point>& points);
  bool heard() const;

  Search body_;
  std::coroutine_handle<> asker_;
  std::deque<Point> queue_;
  std::vector<Point> awaited_;
  int idle_ = 0;  ///< questions in a row that cost nothing
  int patience_;  ///< how many may be; less where the unseen has become rare
  bool over_ = false;
};

}  // namespace kiln::runtime
