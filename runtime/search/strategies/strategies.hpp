// The strategies by name, each in its own file; `make_strategy` chooses.
#pragma once

#include <memory>

#include "runtime/search/strategies/options.hpp"
#include "runtime/search/strategy.hpp"

namespace kiln::runtime {

std::unique_ptr<Strategy> make_exhaustive(const SearchProblem& search, StrategyOptions& options);
std::unique_ptr<Strategy> make_random(const SearchProblem& search, StrategyOptions& options);
std::unique_ptr<Strategy> make_local_search(const SearchProblem& search, StrategyOptions& options);
std::unique_ptr<Strategy> make_coordinate_descent(const SearchProblem& search,
                                                  StrategyOptions& options);
std::unique_ptr<Strategy> make_iterated_local_search(const SearchProblem& search,
                                                     StrategyOptions& options);
std::unique_ptr<Strategy> make_simulated_annealing(const SearchProblem& search,
                                                   StrategyOptions& options);
std::unique_ptr<Strategy> make_genetic(const SearchProblem& search, StrategyOptions& options);
std::unique_ptr<Strategy> make_differential_evolution(const SearchProblem& search,
                                                      StrategyOptions& options);
std::unique_ptr<Strategy> make_model(const SearchProblem& search, StrategyOptions& options);

}  // namespace kiln::runtime
