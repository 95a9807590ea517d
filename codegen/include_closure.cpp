#include "codegen/include_closure.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codegen/directives.hpp"

namespace kiln::codegen {
namespace {

struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  timespec modified{};
  timespec changed{};

  explicit Identity(const struct stat& s)
      : device(s.st_dev),
        inode(s.st_ino),
        size(s.st_size),
        modified(s.st_mtim),
        changed(s.st_ctim) {}

  bool operator==(const Identity& o) const {
    const auto same = [](const timespec& a, const timespec& b) {
      return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
    };
    return device == o.device && inode == o.inode && size == o.size && same(modified, o.modified) &&
           same(changed, o.changed);
  }
};

struct ScannedFile {
  Identity identity;
  Digest content;
  std::vector<Directive> directives;
};

std::optional<std::string> read_all(int fd, off_t size) {
  std::string text(static_cast<std::size_t>(size) + 1, '\0');  // one more, to notice a longer file
  std::size_t length = 0;
  while (true) {
    if (length == text.size()) text.resize(2 * text.size());
    const ssize_t n = ::read(fd, text.data() + length, text.size() - length);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::nullopt;
    if (n == 0) break;
    length += static_cast<std::size_t>(n);
  }
  text.resize(length);
  return text;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

struct IncludeCache::Impl {
  explicit Impl(int seconds) : settle_seconds(seconds) {}

  // Null if the file does not exist or cannot be read.
  std::shared_ptr<const ScannedFile> load(const std::string& path) {
    struct stat now;
    if (::stat(path.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) return nullptr;
    {
      std::shared_lock lock(mutex);
      const auto found = files.find(path);
      if (found != files.end() && found->second->identity == Identity(now)) return found->second;
    }
    return scan(path);
  }

  std::shared_ptr<const ScannedFile> scan(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return nullptr;
    struct stat opened;
    std::optional<std::string> text;
    if (::fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode)) text = read_all(fd, opened.st_size);
    ::close(fd);
    if (!text) return nullptr;
    auto file = std::make_shared<const ScannedFile>(
        ScannedFile{Identity(opened), sha256(*text), find_directives(*text)});
    if (::time(nullptr) - opened.st_ctim.tv_sec >= settle_seconds) {
      std::unique_lock lock(mutex);
      if (files.size() >= kMaxFiles) files.clear();
      files[path] = file;
    }
    return file;
  }

  static constexpr std::size_t kMaxFiles = 16384;
  const int settle_seconds;
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const ScannedFile>> files;
};

IncludeCache::IncludeCache(int settle_seconds) : impl_(std::make_unique<Impl>(settle_seconds)) {}
IncludeCache::~IncludeCache() = default;

struct FilesSeen::Impl {
  explicit Impl(IncludeCache::Impl& cache_) : cache(cache_) {}

  const std::shared_ptr<const ScannedFile>& load(const std::string& path) {
    const auto [seen, first] = files.try_emplace(path);
    if (first) seen->second = cache.load(path);
    return seen->second;
  }

  IncludeCache::Impl& cache;
  std::unordered_map<std::string, std::shared_ptr<const ScannedFile>> files;  ///< null: absent
};

FilesSeen::FilesSeen(IncludeCache& cache) : impl_(std::make_unique<Impl>(cache.impl())) {}
FilesSeen::~FilesSeen() = default;

namespace {

class Traversal {
 public:
  Traversal(const IncludeContext& context, FilesSeen::Impl& files)
      : context_(context), files_(files), macros_(context.macros) {}

  IncludeClosure run(std::string_view text) {
    append("kiln include closure 1");
    append(text);
    const std::vector<Directive> directives = find_directives(text);
    const Place start{folder_of(context_.path), -1, 0};
    for (const std::string& name : context_.pre_includes) include('"', name, start, false);
    follow(directives, start);
    follow_computed();
    result_.digest = sha256(encoded_);
    std::sort(result_.unresolved.begin(), result_.unresolved.end());
    result_.complete = result_.unresolved.empty();
    return std::move(result_);
  }

 private:
  static constexpr int kMaxDepth = 200;

  // Where the file being followed was found.
  struct Place {
    std::string folder;
    int dir;  ///< index into include_dirs; -1: not through one of them
    int depth;
  };
  struct Found {
    std::shared_ptr<const ScannedFile> file;
    std::string path;
    int dir = -1;
  };
  struct Computed {
    std::string operand;
    Place place;
  };
  // One level of #if.
  struct Branch {
    bool enclosing;  ///< the code around it may be live
    bool live;       ///< so may this branch
    bool decided;    ///< a branch so far was certainly taken, so no later one is
  };

  void append(std::string_view text) {
    const std::uint64_t size = text.size();
    for (int i = 0; i < 8; ++i) encoded_ += static_cast<char>(size >> (8 * i));
    encoded_ += text;
  }

  void follow(const std::vector<Directive>& directives, const Place& place) {
    using Kind = Directive::Kind;
    std::vector<Branch> branches;
    const auto live = [&] { return branches.empty() || branches.back().live; };
    for (const Directive& d : directives) {
      if (d.kind == Kind::condition) {
        const Certainty c = live() ? evaluate(d.name, place) : Certainty::no;
        branches.push_back({live(), live() && c != Certainty::no, c == Certainty::yes});
      } else if (d.kind == Kind::elif || d.kind == Kind::otherwise) {
        if (branches.empty()) continue;
        Branch& b = branches.back();
        const bool possible = b.enclosing && !b.decided;
        const Certainty c = !possible                   ? Certainty::no
                            : d.kind == Kind::otherwise ? Certainty::yes
                                                        : evaluate(d.name, place);
        b.live = possible && c != Certainty::no;
        b.decided = b.decided || c == Certainty::yes;
      } else if (d.kind == Kind::end) {
        if (!branches.empty()) branches.pop_back();
      } else if (live()) {
        plain(d, place);
      }
    }
  }

  void plain(const Directive& d, const Place& place) {
    using Kind = Directive::Kind;
    switch (d.kind) {
      case Kind::include:
        include(d.delimiter, d.name, place, false);
        break;
      case Kind::include_next:
        include(d.delimiter, d.name, place, true);
        break;
      case Kind::computed:
        computed_.push_back({d.name, place});
        break;
      case Kind::probe:
        record_probes(d.name, place, d.delimiter == '(');
        break;
      case Kind::define:
        definitions_.push_back(&d);
        [[fallthrough]];
      case Kind::undefine:
        if (macros_.mentions(d.name)) {
          macros_.forget(d.name);
          ++generation_;
        }
        break;
      default:
        break;
    }
  }

  Certainty evaluate(const std::string& condition, const Place& place) {
    record_probes(condition, place, false);
    return evaluate_condition(condition, macros_);
  }

  // The parameter of a macro like `#define HAS(x) __has_include(x)` is spelled out where it is
  // used.
  void record_probes(const std::string& text, const Place& place, bool has_parameters) {
    for (const HasInclude& asked : find_has_include(text)) {
      if (asked.delimiter == 0) {
        if (!has_parameters) unresolved_once("__has_include is given a macro: " + text);
        continue;
      }
      const bool exists =
          is_builtin(asked.name) || resolve(asked.delimiter, asked.name, place, false).file;
      append(exists ? "has" : "has not");
      append(std::string(1, asked.delimiter).append(asked.name));
    }
  }

  bool is_builtin(const std::string& name) const {
    const auto& names = context_.builtin_headers;
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  Found resolve(char delimiter, const std::string& name, const Place& place, bool next) {
    if (name.empty()) return {};
    if (name[0] == '/') return {files_.load(name), name, -1};
    if (delimiter == '"' && !next) {
      const std::string path = place.folder + "/" + name;
      if (const auto& file = files_.load(path)) return {file, path, place.dir};
    }
    for (int i = next ? place.dir + 1 : 0; i < static_cast<int>(context_.include_dirs.size());
         ++i) {
      const std::string path = context_.include_dirs[static_cast<std::size_t>(i)] + "/" + name;
      if (const auto& file = files_.load(path)) return {file, path, i};
    }
    return {};
  }

  void include(char delimiter, const std::string& name, const Place& place, bool next) {
    std::string shown(1, delimiter);
    shown.append(name).append(1, delimiter == '<' ? '>' : '"');
    if (place.depth >= kMaxDepth) {
      unresolved_once("includes are nested too deeply at " + shown);
      return;
    }
    const Found found = is_builtin(name) ? Found{} : resolve(delimiter, name, place, next);
    append(shown);
    if (!found.file) {
      const bool external = delimiter == '<' || is_builtin(name);
      append(external ? "external" : "absent");
      const auto kind = external ? IncludedFile::Kind::external : IncludedFile::Kind::absent;
      if (missing_.insert(shown).second) result_.files.push_back({kind, shown, {}, {}});
      return;
    }
    // Every include is part of the digest, the repeated ones too: they say which of two files of
    // one name was meant.
    append({reinterpret_cast<const char*>(found.file->content.data()), found.file->content.size()});
    const std::string folder = folder_of(found.path);
    auto [visit, first] = visited_.try_emplace(visit_key(*found.file, folder), -1);
    if (first) {
      result_.files.push_back({IncludedFile::Kind::file, shown, found.path, found.file->content});
    }
    // Followed again only if since then a macro became unknown, which may open more branches.
    if (visit->second == generation_) return;
    visit->second = generation_;
    kept_.push_back(found.file);
    follow(found.file->directives, {folder, found.dir, place.depth + 1});
  }

  // The same file reached through two folders may include different neighbours.
  using VisitKey = std::tuple<dev_t, ino_t, dev_t, ino_t>;
  VisitKey visit_key(const ScannedFile& file, const std::string& folder) {
    auto [known, first] = folders_.try_emplace(folder, dev_t{0}, ino_t{0});
    struct stat s;
    if (first && ::stat(folder.c_str(), &s) == 0) known->second = {s.st_dev, s.st_ino};
    return {file.identity.device, file.identity.inode, known->second.first, known->second.second};
  }

  // Followed last, when all values that a macro is given anywhere are known: any may be the one.
  void follow_computed() {
    std::set<std::pair<std::size_t, std::string>> followed;
    for (bool more = !computed_.empty(); more;) {
      more = false;
      for (std::size_t i = 0; i < computed_.size(); ++i) {
        std::set<std::string> names;
        std::set<std::string> expanding;
        const Computed computed = computed_[i];  // following one may add to the list
        if (!expand(computed.operand, names, expanding)) {
          unresolved_once("#include " + computed.operand);
        }
        for (const std::string& name : names) {
          if (!followed.emplace(i, name).second) continue;
          more = true;
          include(name[0], name.substr(1, name.size() - 2), computed.place, false);
        }
      }
    }
  }

  // The file names that `text` may expand to. False if it may also become something else.
  bool expand(const std::string& text, std::set<std::string>& names,
              std::set<std::string>& expanding) {
    if (text.size() > 2 && (text[0] == '<' || text[0] == '"')) {
      const char close = text[0] == '<' ? '>' : '"';
      if (text.find(close, 1) != text.size() - 1) return false;
      names.insert(text);
      return true;
    }
    if (!expanding.insert(text).second) return false;  // a macro within itself stays a word
    bool any = false;
    bool all = true;
    const auto value = context_.macros.defined.find(text);
    if (value != context_.macros.defined.end()) {
      any = true;
      all = expand(value->second, names, expanding);
    }
    std::set<std::string_view> values;
    for (const Directive* d : definitions_) {
      if (d->name != text || !values.insert(d->value).second) continue;
      any = true;
      all = !d->value.empty() && expand(d->value, names, expanding) && all;
    }
    expanding.erase(text);
    return any && all;
  }

  void unresolved_once(std::string text) {
    auto& list = result_.unresolved;
    if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(std::move(text));
  }

  const IncludeContext& context_;
  FilesSeen::Impl& files_;
  KnownMacros macros_;
  int generation_ = 0;  ///< how many macros have become unknown
  std::string encoded_;
  IncludeClosure result_;
  std::set<std::string> missing_;
  std::map<VisitKey, int> visited_;  ///< at which generation each file was last followed
  std::map<std::string, std::pair<dev_t, ino_t>> folders_;
  std::vector<std::shared_ptr<const ScannedFile>> kept_;  ///< owns what definitions_ points to
  std::vector<const Directive*> definitions_;
  std::vector<Computed> computed_;
};

}  // namespace

IncludeClosure include_closure(std::string_view text, const IncludeContext& context,
                               const FilesSeen& files) {
  return Traversal(context, files.impl()).run(text);
}

}  // namespace kiln::codegen
