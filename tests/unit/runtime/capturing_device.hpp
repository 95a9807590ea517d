// A fake device whose streams the program captures. A call that no capture survives, made by a
// thread that captures, breaks the capture.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_device.hpp"

namespace kiln::test {

class CapturingDevice final : public FakeDevice, private runtime::Graphs {
 public:
  /// A launch: its arguments are copied.
  struct Node {
    const runtime::Module* kernel;
    Launch launch;
    std::vector<std::vector<std::byte>> arguments;

    std::vector<void*> addresses() {
      std::vector<void*> all;
      for (auto& argument : arguments) all.push_back(argument.data());
      return all;
    }
  };
  struct Graph {
    std::uint64_t id = 0;
    std::thread::id thread;
    std::list<Node> nodes;  ///< stay where they are
    std::vector<std::shared_ptr<const void>> kept;
    std::vector<std::string> broken;  ///< by these calls
  };
  /// Keeps what its graph keeps, and no longer needs the graph's nodes.
  struct Exec {
    std::vector<std::pair<const void*, Node>> nodes;
    std::vector<std::shared_ptr<const void>> kept;
  };

  using FakeDevice::FakeDevice;

  /// `graph`: one that was destroyed, whose place the new one takes.
  void begin(Stream stream, std::unique_ptr<Graph> graph = std::make_unique<Graph>()) {
    const std::lock_guard lock(mutex_);
    graph->nodes.clear();
    graph->kept.clear();
    graph->id = ++captures_begun_;
    graph->thread = std::this_thread::get_id();
    captures_[stream.handle] = std::move(graph);
  }
  std::unique_ptr<Graph> end(Stream stream) {
    const std::lock_guard lock(mutex_);
    auto graph = std::move(captures_.at(stream.handle));
    captures_.erase(stream.handle);
    return graph;
  }
  static Exec instantiate(const Graph& graph) {
    Exec exec{{}, graph.kept};
    for (const Node& node : graph.nodes) exec.nodes.emplace_back(&node, node);
    return exec;
  }
  void run(const Exec& exec) const {
    for (auto [_, node] : exec.nodes)
      FakeDevice::launch(*node.kernel, node.launch, {}, node.addresses().data());
  }

  /// Of this thread.
  void forbidden(const std::string& call) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [stream, graph] : captures_)
      if (graph->thread == std::this_thread::get_id()) graph->broken.push_back(call);
  }

  mutable std::atomic<int> queries = 0;  ///< whether a stream is being captured
  std::string refusal;                   ///< of changes to a node
  std::string retain_error;              ///< thrown
  bool names_nodes = true;               ///< ... that were captured last
  /// Bytes of what an entry takes; doubling()'s unless a test says otherwise.
  std::function<std::vector<std::size_t>(const std::string& entry)> argument_bytes =
      [](const auto&) {
        return std::vector<std::size_t>{sizeof(float*), sizeof(float*), sizeof(int)};
      };

  // Device
  std::shared_ptr<runtime::Module> load(const codegen::Binary& binary, const Launch& launch,
                                        std::span<const Launch> steps) override {
    forbidden("load");
    return FakeDevice::load(binary, launch, steps);
  }
  void launch(const runtime::Module& kernel, const Launch& launch, Stream stream,
              void** args) const override {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = captures_.find(stream.handle); found != captures_.end()) {
        found->second->nodes.push_back({&kernel, launch, copied(kernel, args)});
        return;
      }
      if (!stream.handle)
        for (const auto& [_, graph] : captures_)
          if (graph->thread == std::this_thread::get_id())
            graph->broken.push_back("launch on the default stream");
    }
    FakeDevice::launch(kernel, launch, stream, args);
  }
  /// The address, the size and the box of a map of one dimension; all other bytes are 0xab.
  runtime::EncodedMap encode(const TensorMap& what, void* address) const override {
    const std::int64_t shape[] = {static_cast<std::int64_t>(what.size[0]), what.box[0]};
    runtime::EncodedMap map;
    map.bytes.fill(std::byte{0xab});
    std::memcpy(map.bytes.data() + sizeof address, shape, sizeof shape);
    move(map, address);
    return map;
  }
  void move(runtime::EncodedMap& map, void* address) const override {
    std::memcpy(map.bytes.data(), &address, sizeof address);
  }
  void* allocate(std::size_t bytes) override {
    forbidden("allocate");
    return FakeDevice::allocate(bytes);
  }
  void release(void* address, std::size_t bytes) noexcept override {
    forbidden("release");
    FakeDevice::release(address, bytes);
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes) override {
    forbidden("copy_to_device");
    FakeDevice::copy_to_device(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override {
    forbidden("copy_to_host");
    FakeDevice::copy_to_host(to, from, bytes);
  }
  void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) override {
    forbidden("copy_on_device");
    FakeDevice::copy_on_device(to, from, bytes, stream);
  }
  void fill(void* at, std::byte value, std::size_t bytes, Stream stream) override {
    forbidden("fill");
    FakeDevice::fill(at, value, bytes, stream);
  }
  void synchronize(Stream) override { forbidden("synchronize"); }
  double time(Stream stream, const std::function<void()>& enqueue) override {
    forbidden("time");
    return FakeDevice::time(stream, enqueue);
  }
  bool capturing(Stream stream) const override {
    ++queries;
    const std::lock_guard lock(mutex_);
    return captures_.count(stream.handle) != 0 || (!stream.handle && !captures_.empty());
  }
  runtime::Graphs* graphs() noexcept override { return this; }

 private:
  std::optional<runtime::OngoingCapture> capture(Stream stream) const override {
    const std::lock_guard lock(mutex_);
    const auto found = captures_.find(stream.handle);
    if (found == captures_.end()) return {};
    Graph& graph = *found->second;
    return runtime::OngoingCapture{
        &graph, graph.id,
        graph.nodes.empty() || !names_nodes ? nullptr : static_cast<void*>(&graph.nodes.back())};
  }
  using FakeDevice::capture;
  void retain(void* graph, std::shared_ptr<const void> what) override {
    if (!retain_error.empty()) throw EnvironmentError(retain_error);
    static_cast<Graph*>(graph)->kept.push_back(std::move(what));
  }
  std::vector<std::string> change(const InstantiatedGraph& graph,
                                  std::span<const runtime::NodeChange> changes) override {
    std::vector<std::string> refusals;
    for (const runtime::NodeChange& wanted : changes) {
      std::string why = refusal;
      auto& nodes = static_cast<Exec*>(graph.exec)->nodes;
      const auto found = std::find_if(nodes.begin(), nodes.end(),
                                      [&](const auto& n) { return n.first == wanted.node; });
      if (found == nodes.end() || static_cast<const Node*>(wanted.node)->kernel != wanted.from)
        why = "no such node";
      if (why.empty()) why = exchange(found->second, wanted);
      refusals.push_back(why);
    }
    return refusals;
  }

  std::string exchange(Node& node, const runtime::NodeChange& wanted) const {
    Node before = *static_cast<const Node*>(wanted.node);
    try {
      if (wanted.arguments)
        wanted.arguments(before.addresses().data(),
                         [&](void** args) { node.arguments = copied(*wanted.to, args); });
    } catch (const Error& error) {
      return error.what();
    }
    node.kernel = wanted.to;
    node.launch = wanted.launch;
    return {};
  }
  std::vector<std::vector<std::byte>> copied(const runtime::Module& kernel, void** args) const {
    std::vector<std::vector<std::byte>> all;
    for (const std::size_t bytes : argument_bytes(static_cast<const FakeKernel&>(kernel).entry)) {
      const auto* const from = static_cast<const std::byte*>(*args++);
      all.emplace_back(from, from + bytes);
    }
    return all;
  }

  mutable std::mutex mutex_;
  mutable std::map<void*, std::unique_ptr<Graph>> captures_;
  std::uint64_t captures_begun_ = 0;
};

}  // namespace kiln::test
