#include "runtime/together/held_places.hpp"

#include <algorithm>

namespace kiln::runtime {

using ranks::HeldMessage;

HeldMessage::Places places_of(std::size_t problems,
                              const std::function<std::string(std::size_t)>& held) {
  std::array<std::string, HeldMessage::kPlaces> texts;
  std::array<bool, HeldMessage::kPlaces> lacks{};
  for (std::size_t s = 0; s < problems; ++s) {
    const std::string text = held(s);
    texts[s % HeldMessage::kPlaces] += text;
    lacks[s % HeldMessage::kPlaces] |= text.empty();
  }
  HeldMessage::Places places{};
  for (std::size_t i = 0; i < places.size(); ++i)
    places[i] = lacks[i] ? 0 : ranks::short_digest(texts[i]) | 1;
  return places;
}

std::array<bool, HeldMessage::kPlaces> held_by_all(std::span<const HeldMessage> all,
                                                   HeldMessage::Places HeldMessage::* places) {
  std::array<bool, HeldMessage::kPlaces> same{};
  for (std::size_t i = 0; i < same.size(); ++i)
    same[i] = std::ranges::all_of(all, [&](const HeldMessage& one) {
      return (one.*places)[i] != 0 && (one.*places)[i] == (all.front().*places)[i];
    });
  return same;
}

}  // namespace kiln::runtime
