// SPDX-License-Identifier: Apache-2.0
// Long because: all of them watch one scan of one small tree.
#include "server/dataset/folder_scan.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <latch>
#include <mutex>
#include <new>
#include <set>

#include "server/dataset/formats/image_index.h"
#include "server/storage/local_file.h"
#include "tests/unit/dataset/open_local.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;

// Local files; a test may look at each listing, or refuse it.
class WatchedLocation final : public Location {
 public:
  using BeforeList = std::function<Status(std::string_view below)>;
  explicit WatchedLocation(LocalPath base) : base_(std::move(base)) {}

  using Location::List;
  const std::string& path() const override { return base_.path(); }
  Result<std::unique_ptr<const RandomAccessFile>> OpenFile(std::string_view below) const override {
    return base_.OpenFile(below);
  }
  Result<Listing> List(std::string_view below, const Visit& visit, const Recall& recall) const override {
    if (before_list) RETURN_IF_ERROR(before_list(below));
    const auto look = [&](const DirectoryEntry& entry) {
      if (while_listing) while_listing(below);
      return visit(entry);
    };
    return base_.List(below, look, recall);
  }
  Result<NodeKind> Kind(std::string_view below) const override { return base_.Kind(below); }
  Result<Stamp> StampOf(std::string_view below) const override { return base_.StampOf(below); }
  Result<std::shared_ptr<const Location>> Parent() const override { return base_.Parent(); }

  BeforeList before_list;
  std::function<void(std::string_view below)> while_listing;

 private:
  const LocalPath base_;
};

// Waits for one log line.
class ProgressSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  ProgressSink(std::string part, std::function<void()> found)
      : part_(std::move(part)), found_(std::move(found)) {}
  const std::string& line() const { return line_; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text(message.payload.data(), message.payload.size());
    if (!line_.empty() || !text.starts_with("indexing") || text.find(part_) == std::string::npos) return;
    line_ = text;
    found_();
  }
  void flush_() override {}

  const std::string part_;
  const std::function<void()> found_;
  std::string line_;
};

class FolderScanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = OpenStore();
    for (const char* name : {"a/1.jpg", "a/2.jpg", "a/deep/3.jpg", "b/4.jpg"}) Add(name);
  }
  std::unique_ptr<IndexStore> OpenStore() const {
    Result<std::unique_ptr<IndexStore>> store = IndexStore::Open(dir_ / "index");
    EXPECT_OK(store);
    return *std::move(store);
  }
  std::string Path(std::string_view below) const { return dir_ / ("set/" + std::string(below)); }
  void Add(const std::string& name) const { dir_.Write("set/" + name, std::string_view("x")); }
  WatchedLocation Base() const {
    return WatchedLocation(LocalPath::Resolve((dir_ / "set").string(), {dir_.path().string()}).value());
  }
  // A clock by which the directories have settled.
  static int64_t Later() { return (int64_t{::time(nullptr)} + 10) * 1'000'000'000; }
  static Result<bool> TakeAll(std::string_view /*directory*/, const DirectoryEntry& entry) {
    return entry.kind == EntryKind::kFile;
  }
  FolderScan::Options Options() const { return {.store = store_.get(), .now = Later}; }

  // The paths of all files, in order.
  Result<std::vector<std::string>> Scan(const Location& base, FolderScan::Options options,
                                        const FolderScan::Take& take = TakeAll,
                                        const std::vector<std::string>& starts = {"a", "b"}) const {
    ASSIGN_OR_RETURN(const NodeId id, base.List("", [](const DirectoryEntry&) { return OkStatus(); }));
    ASSIGN_OR_RETURN(const auto found, FolderScan(base, id, take, std::move(options)).Run(starts));
    std::vector<std::string> paths;
    for (const std::vector<FolderScan::Folder>& folders : found) {
      for (const FolderScan::Folder& folder : folders)
        for (uint64_t i = 0; i < folder.names.size(); ++i)
          paths.push_back(JoinPath(folder.path, folder.names[i]));
    }
    return paths;
  }
  std::vector<std::string> Scan() const {
    const WatchedLocation base = Base();
    return Scan(base, Options()).value();
  }
  // Scans again, and expects the same as of a scan without a store. Returns how many directories were listed.
  uint64_t ListedAgain() const {
    const uint64_t before = store_->counts().listed;
    const WatchedLocation base = Base();
    const Result<std::vector<std::string>> fresh = Scan(base, {});
    EXPECT_OK(fresh);
    EXPECT_EQ(Scan(), *fresh);
    return store_->counts().listed - before;
  }
  // Gives a directory its earlier mtime back, as rsync and tar do.
  static void RestoreTime(const std::string& path, const struct stat& earlier) {
    const timespec times[2] = {earlier.st_atim, earlier.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  std::vector<fs::path> StoreFiles() const {
    return {fs::directory_iterator(dir_ / "index"), fs::directory_iterator()};
  }

  TempDir dir_;
  std::unique_ptr<IndexStore> store_;
};

TEST_F(FolderScanTest, ListsInOrder) {
  EXPECT_THAT(Scan(), ElementsAre("a/1.jpg", "a/2.jpg", "a/deep/3.jpg", "b/4.jpg"));
  EXPECT_EQ(store_->counts().listed, 3U);
  EXPECT_EQ(store_->counts().recalled, 0U);
}

TEST_F(FolderScanTest, ListsNothingTwice) {
  const std::vector<std::string> first = Scan();
  EXPECT_EQ(Scan(), first);
  EXPECT_EQ(store_->counts().listed, 3U);
  EXPECT_EQ(store_->counts().recalled, 3U);
  store_ = OpenStore();  // the next daemon
  EXPECT_EQ(Scan(), first);
  EXPECT_EQ(store_->counts().listed, 0U);
  EXPECT_EQ(store_->counts().recalled, 3U);
}

TEST_F(FolderScanTest, ManyThreadsGiveTheSameOrder) {
  std::vector<std::string> expected;
  std::vector<std::string> starts;
  for (int start = 10; start < 30; ++start) {
    starts.push_back(std::to_string(start));
    for (int folder = 10; folder < 30; ++folder) {
      for (int file = 0; file < 3; ++file) {
        expected.push_back(starts.back() + "/" + std::to_string(folder) + "/" + std::to_string(file));
        Add(expected.back());
      }
    }
  }
  const WatchedLocation base = Base();
  for (int i = 0; i < 3; ++i) {
    const Result<std::vector<std::string>> paths = Scan(base, Options(), TakeAll, starts);
    ASSERT_OK(paths);
    EXPECT_EQ(*paths, expected);
  }
}

TEST_F(FolderScanTest, NoticesEachChange) {
  Scan();
  Add("a/new.jpg");
  EXPECT_EQ(ListedAgain(), 1U);
  fs::remove(Path("a/1.jpg"));
  EXPECT_EQ(ListedAgain(), 1U);
  fs::rename(Path("a/2.jpg"), Path("a/other.jpg"));
  EXPECT_EQ(ListedAgain(), 1U);
  fs::rename(Path("a/other.jpg"), Path("b/other.jpg"));
  EXPECT_EQ(ListedAgain(), 2U);
  Add("a/deep/deeper/5.jpg");
  EXPECT_EQ(ListedAgain(), 2U);
  fs::remove(Path("b/4.jpg"));
  fs::create_directory(Path("b/4.jpg"));
  EXPECT_EQ(ListedAgain(), 2U);
  EXPECT_EQ(ListedAgain(), 0U);
}

TEST_F(FolderScanTest, NoticesAnExchangedDirectory) {
  Scan();
  Add("other/9.jpg");
  fs::rename(Path("b"), Path("aside"));
  fs::rename(Path("other"), Path("b"));
  EXPECT_EQ(ListedAgain(), 1U);
  EXPECT_THAT(Scan(), ElementsAre("a/1.jpg", "a/2.jpg", "a/deep/3.jpg", "b/9.jpg"));
}

TEST_F(FolderScanTest, NoticesAChangeWhoseTimeWasSetBack) {
  Scan();
  struct stat before = {};
  ASSERT_EQ(::stat(Path("b").c_str(), &before), 0);
  Add("b/5.jpg");
  RestoreTime(Path("b"), before);
  EXPECT_EQ(ListedAgain(), 1U);
}

TEST_F(FolderScanTest, KeepsNothingThatMayStillChangeWithinTheSameTick) {
  const WatchedLocation base = Base();
  FolderScan::Options real_clock = Options();
  real_clock.now = nullptr;
  EXPECT_OK(Scan(base, real_clock));
  EXPECT_OK(Scan(base, real_clock));
  EXPECT_EQ(store_->counts().recalled, 0U);
  EXPECT_TRUE(StoreFiles().empty());
}

TEST_F(FolderScanTest, KeepsNothingThatChangesWhileItIsListed) {
  WatchedLocation base = Base();
  std::atomic<bool> changed{false};
  base.while_listing = [&](std::string_view below) {
    if (below == "b" && !changed.exchange(true)) Add("b/late.jpg");
  };
  EXPECT_OK(Scan(base, Options()));
  EXPECT_TRUE(changed);
  EXPECT_EQ(ListedAgain(), 1U);
  EXPECT_EQ(ListedAgain(), 0U);
}

TEST_F(FolderScanTest, AScanEndsWhenTheHostLacksMemory) {
  // More than 1 MiB of names in one folder. In the other, folders that are listed after memory was refused.
  for (int i = 0; i < 4500; ++i) std::ofstream(Path("a/" + std::to_string(i) + std::string(240, 'n')));
  constexpr int kFolders = 4, kBelow = 10;
  for (int i = 0; i < kFolders; ++i)
    for (int j = 0; j < kBelow; ++j)
      fs::create_directories(Path("b/" + std::to_string(i) + "/" + std::to_string(j)));
  std::atomic<bool> refused{false};
  static thread_local bool refused_to_this_thread;
  HostMemoryLedger ledger([&](uint64_t) -> Result<HostMemory> {
    refused_to_this_thread = refused = true;
    refused.notify_all();
    return HostMemory{uint64_t{1} << 30, uint64_t{16} << 20, "a group", "a tighter group"};
  });
  WatchedLocation base = Base();
  std::atomic<int> looked_on{0};
  base.before_list = [&](std::string_view path) {
    if (path.starts_with("b/") && !refused_to_this_thread) refused.wait(false);
    looked_on += refused_to_this_thread;
    return OkStatus();
  };
  const FolderScan::Options options{.now = Later, .ledger = ledger};
  EXPECT_THAT(
      Scan(base, options, TakeAll, {"b", "a"}),
      StatusIs(Code::kResourceExhausted, AllOf(HasSubstr("list '" + Path("a")), HasSubstr("a tighter group"),
                                               HasSubstr("split the dataset"))));
  EXPECT_EQ(looked_on, 0) << "directories that others found meanwhile";
  base.before_list = nullptr;
  EXPECT_OK(Scan(base, options, TakeAll, {"b"}));
}

TEST_F(FolderScanTest, AnIndexOfAFolderThatChangedWhileItWasListedIsNotCurrent) {
  WatchedLocation base = Base();
  ASSERT_OK_AND_ASSIGN(const ImageIndex early, ImageIndex::Build(base, nullptr));
  EXPECT_FALSE(early.IsCurrent(base)) << "another change may have the same time";
  std::this_thread::sleep_for(kSettleTime);
  ASSERT_OK_AND_ASSIGN(const ImageIndex quiet, ImageIndex::Build(base, nullptr));
  EXPECT_TRUE(quiet.IsCurrent(base));
  base.while_listing = [&](std::string_view below) {
    if (below == "a/deep") Add("a/deep/late.jpg");
  };
  ASSERT_OK_AND_ASSIGN(const ImageIndex busy, ImageIndex::Build(base, nullptr));
  base.while_listing = nullptr;
  EXPECT_FALSE(busy.IsCurrent(base));
}

TEST_F(FolderScanTest, AnIndexIsCurrentUntilAnyOfItsFoldersChanges) {
  fs::create_symlink("../1.jpg", Path("a/deep/link.jpg"));
  const WatchedLocation base = Base();
  for (const char* added : {"a/new.jpg", "a/deep/new.jpg"}) {
    std::this_thread::sleep_for(kSettleTime);
    ASSERT_OK_AND_ASSIGN(const ImageIndex index, ImageIndex::Build(base, nullptr));
    EXPECT_TRUE(index.IsCurrent(base));
    Add(added);
    EXPECT_FALSE(index.IsCurrent(base)) << added;
  }
}

TEST_F(FolderScanTest, FollowsLinksEachTime) {
  Add("elsewhere/9.jpg");
  fs::create_symlink("../elsewhere/9.jpg", Path("b/link.jpg"));
  Scan();
  fs::remove(Path("elsewhere/9.jpg"));  // the directory of the link does not change
  EXPECT_EQ(ListedAgain(), 1U);
  EXPECT_THAT(Scan(), ElementsAre("a/1.jpg", "a/2.jpg", "a/deep/3.jpg", "b/4.jpg"));
}

TEST_F(FolderScanTest, ForgetsDirectoriesThatAreGone) {
  Scan();
  const auto size = fs::file_size(StoreFiles().at(0));
  fs::remove_all(Path("a/deep"));
  EXPECT_EQ(ListedAgain(), 1U);
  EXPECT_LT(fs::file_size(StoreFiles().at(0)), size);
}

TEST_F(FolderScanTest, KeepsNothingOfADatasetThatIsTooLarge) {
  const WatchedLocation base = Base();
  FolderScan::Options options = Options();
  options.max_kept_bytes = 3 * kSavedNodeBytes + 1;
  for (int i = 0; i < 2; ++i) EXPECT_OK(Scan(base, options));
  EXPECT_EQ(store_->counts().listed, 6U);
  EXPECT_TRUE(StoreFiles().empty());
  EXPECT_OK(Scan(base, Options()));
  EXPECT_OK(Scan(base, options));  // its entries count, too, when they are known
  EXPECT_EQ(store_->counts().recalled, 3U);
  EXPECT_EQ(ListedAgain(), 0U) << "what was kept before stays";
}

TEST_F(FolderScanTest, ListsAgainIfTheSavedFileIsDamaged) {
  const std::vector<std::string> expected = Scan();
  const fs::path file = StoreFiles().at(0);
  {
    std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekp(-1, std::ios::end);
    bytes.put('X');  // "4.jpX"
  }
  EXPECT_EQ(Scan(), expected);
  EXPECT_EQ(store_->counts().listed, 6U);
  EXPECT_EQ(Scan(), expected);
  EXPECT_EQ(store_->counts().listed, 6U) << "the file was not replaced";
}

TEST_F(FolderScanTest, AnUnreadableDirectoryIsAnErrorAlthoughItIsKnown) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read all directories";
  Add("b/below/5.jpg");
  const WatchedLocation base = Base();
  const auto scan = [&] { return Scan(base, Options(), TakeAll, {"b/below"}); };
  EXPECT_OK(scan());
  EXPECT_OK(scan());
  EXPECT_EQ(store_->counts().recalled, 1U);
  ASSERT_EQ(::chmod(Path("b").c_str(), 0), 0);  // does not change the version of the one below
  const Result<std::vector<std::string>> scanned = scan();
  ASSERT_EQ(::chmod(Path("b").c_str(), 0700), 0);
  EXPECT_THAT(scanned, StatusIs(Code::kPermissionDenied, HasSubstr("b/below")));
}

TEST_F(FolderScanTest, OfSeveralErrorsTheFirstCounts) {
  for (int i = 0; i < 20; ++i) Add("b/" + std::to_string(10 + i) + "/x.jpg");
  WatchedLocation base = Base();
  const auto fail_in = [&](const std::set<std::string, std::less<>>& paths) {
    base.before_list = [paths](std::string_view below) {
      return paths.contains(below) ? Unavailable("list " + std::string(below)) : OkStatus();
    };
  };
  for (int i = 0; i < 20; ++i) {
    fail_in({"b/12", "b/25", "b/29"});
    EXPECT_THAT(Scan(base, Options()), StatusIs(Code::kUnavailable, HasSubstr("list b/12")));
    fail_in({"b/12", "a/deep", "b"});
    EXPECT_THAT(Scan(base, Options()), StatusIs(Code::kUnavailable, HasSubstr("list a/deep")));
  }
}

TEST_F(FolderScanTest, ADirectoryThatIsRemovedMeanwhileIsAnError) {
  WatchedLocation base = Base();
  base.before_list = [&](std::string_view below) {
    if (below == "a/deep") fs::remove_all(Path("a/deep"));
    return OkStatus();
  };
  EXPECT_THAT(Scan(base, Options()), StatusIs(Code::kNotFound, HasSubstr("a/deep")));
}

TEST_F(FolderScanTest, ALoopOfLinksIsAnError) {
  fs::create_directory_symlink("..", Path("a/deep/loop"));
  const WatchedLocation base = Base();
  EXPECT_THAT(Scan(base, Options()),
              StatusIs(Code::kInvalidArgument, HasSubstr("'a' and 'a/deep/loop' are the same directory")));
}

TEST_F(FolderScanTest, ASecondPathToADirectoryIsTheSameErrorInAnyOrder) {
  Add("a/real/sub/5.jpg");
  fs::create_directory_symlink("real", Path("a/link"));
  for (const std::string first : {"a/real", "a/link"}) {
    WatchedLocation base = Base();
    std::latch merged(1);
    base.before_list = [&](std::string_view below) {
      if (below == first + "/sub") merged.count_down();  // is looked into behind its parent
      if (below == (first == "a/real" ? "a/link" : "a/real")) merged.wait();
      return OkStatus();
    };
    EXPECT_THAT(
        Scan(base, Options()),
        StatusIs(Code::kInvalidArgument,
                 HasSubstr("'a/link' and 'a/real' are the same directory, one of them by a symbolic link")));
  }
}

TEST_F(FolderScanTest, WhatRunsOutOfMemoryIsThrown) {
  const WatchedLocation base = Base();
  const auto take = [](std::string_view directory, const DirectoryEntry& entry) -> Result<bool> {
    if (directory == "a/deep") throw std::bad_alloc();
    return TakeAll(directory, entry);
  };
  EXPECT_THROW(static_cast<void>(Scan(base, Options(), take)), std::bad_alloc);
}

TEST_F(FolderScanTest, LogsHowFarItIs) {
  WatchedLocation base = Base();
  std::latch logged(1);
  base.before_list = [&](std::string_view below) {
    if (below == "b") logged.wait();
    return OkStatus();
  };
  const auto before = spdlog::default_logger();
  const auto sink = std::make_shared<ProgressSink>(": 2 of 3 ", [&] { logged.count_down(); });
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", sink));
  FolderScan::Options options = Options();
  options.progress_interval = std::chrono::milliseconds(1);
  const auto scanned = Scan(base, options);
  spdlog::set_default_logger(before);
  EXPECT_OK(scanned);
  EXPECT_THAT(sink->line(), HasSubstr("/set': 2 of 3 directories found so far are done, with 3 files"));
}

// The format: what it refuses is refused again, and the fingerprint does not tell where the names came from.
TEST_F(FolderScanTest, ImageFoldersAreTheSameFromTheStore) {
  const auto open = [&](IndexStore* store) { return OpenLocal(dir_, "set", "image_folder", {}, store); };
  Scan();
  ASSERT_OK_AND_ASSIGN(const auto known, open(store_.get()));
  EXPECT_EQ(store_->counts().recalled, 3U);
  ASSERT_OK_AND_ASSIGN(const auto fresh, open(nullptr));
  EXPECT_EQ(known->info().fingerprint, fresh->info().fingerprint);
  EXPECT_EQ(known->info().samples, 4U);
  Add("b/5.bmp");
  Scan();  // takes it, and keeps it
  EXPECT_THAT(open(store_.get()), StatusIs(Code::kInvalidArgument, HasSubstr("5.bmp")));
}

}  // namespace
}  // namespace pinfeed
