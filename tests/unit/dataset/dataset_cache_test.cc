// SPDX-License-Identifier: Apache-2.0
// Long because: it tests one class, by one fixture.
#include "server/dataset/dataset_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <future>
#include <thread>
#include <vector>

#include "common/base/unique_handle.h"
#include "tests/support/parameters.h"
#include "tests/support/testing.h"
#include "tests/unit/dataset/npy_file.h"

namespace pinfeed {
namespace {

constexpr uid_t kUser = 1000;

class DatasetCacheTest : public ::testing::Test {
 protected:
  std::string WriteRows(const std::string& name, int64_t rows) const {
    const std::vector<int64_t> values(static_cast<size_t>(rows));
    const std::string shape = "(" + std::to_string(rows) + ",)";
    return directory_.Write(name, NpyHeaderBytes("<i8", shape, false) + RawBytes(values)).string();
  }
  static DatasetSpec Path(const std::string& path) {
    DatasetSpec spec;
    spec.path = path;
    return spec;
  }
  // Datasets are shared once their files' times are so old that another change has another time (IsSettled).
  static void LetTimesSettle() { std::this_thread::sleep_for(kSettleTime); }
  // Opens what has settled: from now on it is shared.
  static std::shared_ptr<const Dataset> OpenShared(DatasetCache& cache, const DatasetSpec& spec) {
    LetTimesSettle();
    std::shared_ptr<const Dataset> first = cache.Open(kUser, spec).value();
    EXPECT_EQ(cache.Open(kUser, spec).value(), first);
    return first;
  }
  DatasetCache::Options Options(size_t capacity) const {
    return {{}, {directory_.path().string()}, capacity};
  }

  TempDir directory_;
};

TEST_F(DatasetCacheTest, OpensOnceUntilTheFilesChange) {
  DatasetCache cache(Options(8));
  WriteRows("set/a.npy", 5);
  const DatasetSpec spec = Path(directory_ / "set");
  const auto first = OpenShared(cache, spec);
  WriteRows("set/a.npy", 6);  // an entry of the directory
  ASSERT_OK_AND_ASSIGN(const auto changed, cache.Open(kUser, spec));
  EXPECT_EQ(changed->info().samples, 6U);
  EXPECT_EQ(first->info().samples, 5U);  // for those who have it
  WriteRows("set/b.npy", 6);             // the directory itself
  ASSERT_OK_AND_ASSIGN(const auto grown, cache.Open(kUser, spec));
  EXPECT_EQ(grown->info().fields.size(), 2U);
}

TEST_F(DatasetCacheTest, WhatChangedJustNowIsOpenedAgain) {
  DatasetCache cache(Options(8));
  const DatasetSpec spec = Path(WriteRows("a.npy", 5));
  // A file system with a coarse clock would give another change the same time.
  ASSERT_OK_AND_ASSIGN(const auto early, cache.Open(kUser, spec));
  ASSERT_OK_AND_ASSIGN(const auto next, cache.Open(kUser, spec));
  EXPECT_NE(early, next);
  EXPECT_NE(next, OpenShared(cache, spec));
}

TEST_F(DatasetCacheTest, FoldersBelowTheClassesCountAsWell) {
  DatasetCache cache(Options(8));
  for (const char* name : {"cat/a.jpg", "cat/young/b.jpg", "dog/old/grey/c.jpg", "dog/none/readme"})
    directory_.Write("set/" + std::string(name), "x");
  const DatasetSpec spec = Path(directory_ / "set");
  const auto samples = [&] { return cache.Open(kUser, spec).value()->info().samples; };
  const auto first = OpenShared(cache, spec);
  EXPECT_EQ(samples(), 3U);
  directory_.Write("set/dog/old/grey/d.jpg", "x");
  EXPECT_EQ(samples(), 4U);
  directory_.Write("set/dog/none/e.jpg", "x");
  EXPECT_EQ(samples(), 5U);
  std::filesystem::remove(directory_ / "set/cat/young/b.jpg");
  EXPECT_EQ(samples(), 4U);
  LetTimesSettle();
  ASSERT_OK_AND_ASSIGN(const auto last, cache.Open(kUser, spec));
  directory_.Write("set/dog/old/grey/d.jpg", "y");  // in place: the samples are the same
  ASSERT_OK_AND_ASSIGN(const auto rewritten, cache.Open(kUser, spec));
  EXPECT_EQ(last, rewritten);
  EXPECT_EQ(first->info().samples, 3U);  // for those who have it
}

TEST_F(DatasetCacheTest, OfMoreEntriesThanAreStampedTheFoldersOfTheClassesCountAsWell) {
  DatasetCache cache(Options(8));
  for (size_t i = 0; i <= Location::kMaxStamped; ++i)
    directory_.Write("set/" + std::to_string(i) + "/a.jpg", "x");
  const DatasetSpec spec = Path(directory_ / "set");
  const auto first = OpenShared(cache, spec);
  directory_.Write("set/7/b.jpg", "x");
  ASSERT_OK_AND_ASSIGN(const auto grown, cache.Open(kUser, spec));
  EXPECT_EQ(grown->info().samples, Location::kMaxStamped + 2);
}

TEST_F(DatasetCacheTest, OfMoreEntriesThanAreStampedTheTableCountsAsWell) {
  DatasetCache cache(Options(8));
  std::string table = "file_name,label\n";
  for (size_t i = 0; i <= Location::kMaxStamped; ++i) {
    const std::string name = std::to_string(i) + ".jpg";
    directory_.Write("set/" + name, "x");
    table += name + ",1\n";
  }
  directory_.Write("set/metadata.csv", table);
  const DatasetSpec spec = Path(directory_ / "set");
  const auto first = OpenShared(cache, spec);
  table[table.size() - 2] = '2';
  directory_.Write("set/metadata.csv", table);  // in place
  ASSERT_OK_AND_ASSIGN(const auto changed, cache.Open(kUser, spec));
  EXPECT_NE(first->info().fingerprint, changed->info().fingerprint);
}

TEST_F(DatasetCacheTest, SaysOfAPatternThatItIsNotExpanded) {
  DatasetCache cache(Options(8));
  const auto open = [&](const char* name) { return cache.Open(kUser, Path(directory_ / name)); };
  EXPECT_THAT(open("train-{000..009}.tar.gz"),
              StatusIs(Code::kNotFound, AllOf(HasSubstr("patterns are not expanded"), HasSubstr("gunzip"))));
  EXPECT_THAT(open("*.npy"), StatusIs(Code::kNotFound, HasSubstr("a dataset is one directory or one file")));
  EXPECT_THAT(open("~/data"), StatusIs(Code::kNotFound, HasSubstr("os.path.expanduser")));
  EXPECT_THAT(open("gone.npy"), StatusIs(Code::kNotFound, Not(HasSubstr("expanded"))));
  WriteRows("{a}.npy", 3);  // a name like any other
  EXPECT_OK(open("{a}.npy"));
}

TEST_F(DatasetCacheTest, WhatALinkLeadsToCountsAsWell) {
  DatasetCache cache(Options(8));
  const std::string target = WriteRows("versions/a.npy", 5);
  std::filesystem::create_directory(directory_ / "set");
  std::filesystem::create_symlink("../versions/a.npy", directory_ / "set/a.npy");
  std::filesystem::create_symlink("nowhere", directory_ / "set/b.txt");
  const DatasetSpec spec = Path(directory_ / "set");
  const auto first = OpenShared(cache, spec);
  WriteRows("versions/a.npy", 6);
  ASSERT_OK_AND_ASSIGN(const auto changed, cache.Open(kUser, spec));
  EXPECT_EQ(changed->info().samples, 6U);
}

TEST_F(DatasetCacheTest, WhatChangesWhileItIsOpenedIsOpenedAgain) {
  WriteRows("releases/1/a.npy", 5);
  WriteRows("releases/2/a.npy", 6);
  int release = 2;
  const auto change = [&] {
    release = 3 - release;
    std::filesystem::create_directory_symlink("releases/" + std::to_string(release), directory_ / "next");
    std::filesystem::rename(directory_ / "next", directory_ / "current");
  };
  change();
  LetTimesSettle();
  int opens = 0;
  bool always = false;
  DatasetCache cache(Options(8), nullptr, [&](const auto& location, const DatasetSpec& spec) {
    if (opens++ == 0 || always) change();  // after the cache has looked at it
    return OpenDataset(location, spec);
  });
  const DatasetSpec spec = Path(directory_ / "current");
  ASSERT_OK_AND_ASSIGN(auto second, cache.Open(kUser, spec));
  EXPECT_EQ(second->info().samples, 6U);
  EXPECT_EQ(opens, 2);
  change();
  ASSERT_OK_AND_ASSIGN(auto first, cache.Open(kUser, spec));
  EXPECT_EQ(first->info().samples, 5U) << "the first one's place has the second one's rows";
  always = true;
  cache.Clear();
  first.reset();
  second.reset();
  opens = 0;
  EXPECT_THAT(cache.Open(kUser, spec),
              StatusIs(Code::kFailedPrecondition, HasSubstr("another folder took its place")));
  EXPECT_EQ(opens, 5);
}

TEST_F(DatasetCacheTest, AFolderThatChangesAllTheTimeIsUsedAsItIs) {
  WriteRows("set/a.npy", 5);
  LetTimesSettle();
  int opens = 0;
  DatasetCache cache(Options(8), nullptr, [&](const auto& location, const DatasetSpec& spec) {
    directory_.Write("set/note" + std::to_string(++opens) + ".txt", "x");
    return OpenDataset(location, spec);
  });
  EXPECT_OK(cache.Open(kUser, Path(directory_ / "set")));
  EXPECT_EQ(opens, 2);
}

TEST_F(DatasetCacheTest, ATableThatIsReplacedAllTheTimeIsUsedAsItIs) {
  const std::string path = directory_.Write("set/t.csv", std::string_view("a\n1\n")).string();
  LetTimesSettle();
  int opens = 0;
  DatasetCache cache(Options(8), nullptr, [&](const auto& location, const DatasetSpec& spec) {
    auto opened = OpenDataset(location, spec);
    directory_.Write("set/next", std::string_view("a\n2\n"));
    std::filesystem::rename(directory_ / "set/next", path);
    ++opens;
    return opened;
  });
  EXPECT_OK(cache.Open(kUser, Path(path)));
  EXPECT_EQ(opens, 2);
}

// Here the path itself leads to another folder while it is opened; there is no link.
TEST_F(DatasetCacheTest, FoldersThatAreExchangedAreNotMixed) {
  const std::string set = directory_ / "set";
  WriteRows("set/a.npy", 5);
  WriteRows("next/a.npy", 6);
  const auto exchange = [&] {
    ASSERT_EQ(::renameat2(AT_FDCWD, set.c_str(), AT_FDCWD, (directory_ / "next").c_str(), RENAME_EXCHANGE),
              0);
  };
  int exchanges = 1;
  DatasetCache cache(Options(8), nullptr, [&](const auto& location, const DatasetSpec& spec) {
    auto opened = OpenDataset(location, spec);
    if (exchanges-- > 0) exchange();
    return opened;
  });
  ASSERT_OK_AND_ASSIGN(const auto dataset, cache.Open(kUser, Path(set)));
  EXPECT_EQ(dataset->info().samples, 6U);
  exchanges = 1000;
  cache.Clear();
  directory_.Write("set/changed.txt", "x");
  EXPECT_THAT(cache.Open(kUser, Path(set)),
              StatusIs(Code::kFailedPrecondition, HasSubstr("may be of either")));
}

TEST_F(DatasetCacheTest, WhatALinkLedToInBetweenIsNotOpened) {
  WriteRows("releases/1/a.npy", 5);
  WriteRows("releases/2/a.npy", 6);
  const auto lead_to = [&](const char* release) {
    std::filesystem::create_directory_symlink(release, directory_ / "next");
    std::filesystem::rename(directory_ / "next", directory_ / "current");
  };
  lead_to("releases/1");
  LetTimesSettle();
  DatasetCache cache(Options(8), nullptr, [&](const auto& location, const DatasetSpec& spec) {
    lead_to("releases/2");
    auto opened = OpenDataset(location, spec);
    lead_to("releases/1");
    return opened;
  });
  const DatasetSpec spec = Path(directory_ / "current");
  ASSERT_OK_AND_ASSIGN(const auto dataset, cache.Open(kUser, spec));
  EXPECT_EQ(dataset->info().samples, 5U);
}

TEST_F(DatasetCacheTest, KeepsTheOnesUsedLast) {
  DatasetCache cache(Options(2));
  std::vector<std::weak_ptr<const Dataset>> opened;
  for (const char* name : {"a.npy", "b.npy", "a.npy", "c.npy"}) {
    const std::string path = WriteRows(std::string(name) + "/x.npy", 3);
    LetTimesSettle();
    ASSERT_OK_AND_ASSIGN(const auto dataset, cache.Open(kUser, Path(path)));
    opened.push_back(dataset);
  }
  EXPECT_TRUE(opened[1].expired());
  EXPECT_FALSE(opened[2].expired());
  EXPECT_FALSE(opened[3].expired());
}

TEST_F(DatasetCacheTest, WithoutRoomADatasetLivesWithItsUsers) {
  DatasetCache cache(Options(0));
  const DatasetSpec spec = Path(WriteRows("a.npy", 3));
  std::weak_ptr<const Dataset> seen;
  LetTimesSettle();
  {
    ASSERT_OK_AND_ASSIGN(const auto used, cache.Open(kUser, spec));
    ASSERT_OK_AND_ASSIGN(const auto shared, cache.Open(kUser, spec));
    EXPECT_EQ(used, shared);
    seen = used;
  }
  EXPECT_TRUE(seen.expired());
  EXPECT_OK(cache.Open(kUser, spec));
}

TEST_F(DatasetCacheTest, FailuresAreNotKept) {
  DatasetCache cache(Options(8));
  const DatasetSpec spec = Path((directory_ / "late.npy").string());
  EXPECT_THAT(cache.Open(kUser, spec), StatusIs(Code::kNotFound));
  directory_.Write("late.npy", std::string_view("no array"));
  EXPECT_FALSE(cache.Open(kUser, spec).ok());
  EXPECT_FALSE(cache.Open(kUser, spec).ok());  // and nobody waits for the one that failed
  WriteRows("late.npy", 4);
  EXPECT_OK(cache.Open(kUser, spec));
}

TEST_F(DatasetCacheTest, ThreadsThatOpenTheSameGetTheSame) {
  DatasetCache cache(Options(8));
  const DatasetSpec spec = Path(WriteRows("a.npy", 3));
  LetTimesSettle();
  std::vector<std::future<std::shared_ptr<const Dataset>>> openers;
  for (int i = 0; i < 8; ++i)
    openers.push_back(std::async(std::launch::async, [&] { return cache.Open(kUser, spec).value(); }));
  const std::shared_ptr<const Dataset> first = openers[0].get();
  for (size_t i = 1; i < openers.size(); ++i) EXPECT_EQ(openers[i].get(), first);
}

TEST_F(DatasetCacheTest, NamesNeedNoRootAndTheClientsWordWins) {
  DatasetSpec tokens = Path(directory_.Write("t.bin", std::string(2 * 101, '\1')).string());
  tokens.options["sequence_length"] = Number(10);
  DatasetCache cache({{{"text", tokens}}, {}, 8});
  DatasetSpec by_name;
  by_name.name = "text";
  ASSERT_OK_AND_ASSIGN(const auto configured, cache.Open(kUser, by_name));
  EXPECT_EQ(configured->info().samples, 10U);
  by_name.options["sequence_length"] = Number(20);
  ASSERT_OK_AND_ASSIGN(const auto longer, cache.Open(kUser, by_name));
  EXPECT_EQ(longer->info().samples, 5U);
  by_name.name = "nobody";
  EXPECT_THAT(cache.Open(kUser, by_name),
              StatusIs(Code::kNotFound, HasSubstr("is not configured in the daemon")));
  EXPECT_THAT(cache.Open(kUser, tokens), StatusIs(Code::kPermissionDenied));  // by path it needs a root
}

TEST_F(DatasetCacheTest, TheClientsTokenDtypeWinsAlsoWhenItIsTheDefault) {
  DatasetSpec tokens = Path(directory_.Write("t.bin", std::string(4 * 101, '\0')).string());
  tokens.options["sequence_length"] = Number(10);
  tokens.options["token_dtype"] = Word("uint32");
  DatasetCache cache({{{"text", tokens}}, {}, 8});
  DatasetSpec by_name;
  by_name.name = "text";
  ASSERT_OK_AND_ASSIGN(const auto configured, cache.Open(kUser, by_name));
  EXPECT_EQ(configured->info().samples, 10U);  // of 101 tokens
  by_name.options["token_dtype"] = Word("uint16");
  ASSERT_OK_AND_ASSIGN(const auto said, cache.Open(kUser, by_name));
  EXPECT_EQ(said->info().samples, 20U);  // of 202
}

// Purpose: a dataset that, when it ends, asks something of the cache from another thread.
class AskingDataset final : public Dataset {
 public:
  explicit AskingDataset(std::function<void()> at_end) : at_end_(std::move(at_end)) {}
  ~AskingDataset() override { at_end_(); }
  const DatasetInfo& info() const override { return info_; }
  std::string Describe(uint64_t) const override { return ""; }

 private:
  std::function<void()> at_end_;
  DatasetInfo info_;
};

TEST_F(DatasetCacheTest, DatasetsEndWithoutTheLock) {
  std::vector<std::future<void>> asked;
  int free = 0;
  DatasetCache* in_use = nullptr;
  const auto at_end = [&] {
    asked.push_back(std::async(std::launch::async, [in_use] { (void)in_use->options(); }));
    if (asked.back().wait_for(std::chrono::seconds(20)) == std::future_status::ready) ++free;
  };
  const auto open = [&](const std::shared_ptr<const Location>&, const DatasetSpec&) {
    return Result<std::shared_ptr<const Dataset>>(std::make_shared<const AskingDataset>(at_end));
  };
  DatasetCache cache(Options(1), nullptr, open);
  in_use = &cache;
  for (const char* name : {"a.npy", "b.npy"}) WriteRows(name, 3);
  LetTimesSettle();
  for (const char* name : {"a.npy", "b.npy"}) EXPECT_OK(cache.Open(kUser, Path(directory_ / name)));
  EXPECT_EQ(asked.size(), 1U);  // the first made room for the second
  cache.SetOptions(Options(0));
  EXPECT_EQ(asked.size(), 2U);
  EXPECT_EQ(free, 2);
}

// Whoever lets go of a dataset last, only `close` ends it, on the account of who had it opened first.
TEST_F(DatasetCacheTest, DatasetsEndByCloseAlone) {
  std::vector<std::pair<uid_t, std::shared_ptr<const Dataset>>> closing;
  bool ended = false;
  const auto close = [&](uid_t user, const DatasetSpec&, std::shared_ptr<const Dataset> dataset) {
    closing.emplace_back(user, std::move(dataset));
  };
  const auto open = [&](const std::shared_ptr<const Location>&, const DatasetSpec&) {
    return Result<std::shared_ptr<const Dataset>>(
        std::make_shared<const AskingDataset>([&ended] { ended = true; }));
  };
  DatasetCache cache(Options(1), close, open);
  const DatasetSpec spec = Path(WriteRows("a.npy", 3));
  LetTimesSettle();
  {
    ASSERT_OK_AND_ASSIGN(const auto used, cache.Open(1, spec));
    ASSERT_OK_AND_ASSIGN(const auto shared, cache.Open(2, spec));
    EXPECT_EQ(used, shared);
  }
  EXPECT_TRUE(closing.empty());  // the cache has it
  cache.Clear();
  ASSERT_EQ(closing.size(), 1U);
  EXPECT_EQ(closing[0].first, 1U);
  EXPECT_EQ(closing[0].second.use_count(), 1);
  EXPECT_FALSE(ended);
  closing.clear();
  EXPECT_TRUE(ended);
}

TEST_F(DatasetCacheTest, WhatWasOpenedBeforeTheFilesChangedIsNotKept) {
  int closed = 0;
  DatasetCache cache(Options(8), [&](uid_t, const DatasetSpec&, const auto&) { ++closed; });
  WriteRows("set/a.npy", 5);
  WriteRows("other/a.npy", 5);
  LetTimesSettle();
  EXPECT_OK(cache.Open(kUser, Path(directory_ / "other")));
  ASSERT_OK_AND_ASSIGN(auto used, cache.Open(kUser, Path(directory_ / "set")));
  WriteRows("set/a.npy", 6);
  EXPECT_OK(cache.Open(kUser, Path(directory_ / "set")));
  EXPECT_EQ(closed, 1) << "the new one, which has not settled";
  used.reset();
  EXPECT_EQ(closed, 2);
}

TEST_F(DatasetCacheTest, WhereMemoryIsLackingDatasetsWithoutReadersAreClosed) {
  int closed = 0;
  bool lacking = false;
  const auto open = [&](const std::shared_ptr<const Location>&, const DatasetSpec&) {
    return lacking ? Result<std::shared_ptr<const Dataset>>(Status(Code::kResourceExhausted, "no room", 24))
                   : Result<std::shared_ptr<const Dataset>>(std::make_shared<const AskingDataset>([] {}));
  };
  DatasetCache cache(
      Options(8), [&](uid_t, const DatasetSpec&, const auto&) { ++closed; }, open);
  for (const char* name : {"used.npy", "unused.npy", "wanted.npy"}) WriteRows(name, 3);
  LetTimesSettle();
  const auto path = [&](const char* name) { return Path(directory_ / name); };
  ASSERT_OK_AND_ASSIGN(const auto used, cache.Open(kUser, path("used.npy")));
  EXPECT_OK(cache.Open(kUser, path("unused.npy")));
  lacking = true;
  const auto refused = cache.Open(kUser, path("wanted.npy"));
  EXPECT_THAT(refused,
              StatusIs(Code::kResourceExhausted, AllOf(HasSubstr("no room"), HasSubstr("try again"))));
  EXPECT_EQ(refused.status().native_error(), 24);
  EXPECT_EQ(closed, 1);
  EXPECT_THAT(cache.Open(kUser, path("wanted.npy")),
              StatusIs(Code::kResourceExhausted, Not(HasSubstr("try again"))))
      << "nothing is left to be closed";
  EXPECT_EQ(cache.Open(kUser, path("used.npy")).value(), used);
}

// Purpose: hears of every file and folder that is opened in a folder. Owns: an inotify descriptor.
class OpenedWatch {
 public:
  explicit OpenedWatch(const std::string& folder) : inotify_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(::inotify_add_watch(inotify_.get(), folder.c_str(), IN_OPEN | IN_ACCESS), 0);
  }
  bool heard() const {
    std::array<char, 4096> events{};
    return ::read(inotify_.get(), events.data(), events.size()) > 0;
  }

 private:
  UniqueFd inotify_;
};

TEST_F(DatasetCacheTest, NothingBehindALinkOutOfTheRootsIsOpened) {
  const TempDir elsewhere;
  elsewhere.Write("set/a.npy", NpyHeaderBytes("<i8", "(1,)", false) + RawBytes(std::vector<int64_t>{1}));
  const std::string folder = (elsewhere / "set").string();
  std::filesystem::create_symlink(folder, directory_ / "link");
  DatasetCache cache(Options(8));
  const OpenedWatch watch(folder);
  EXPECT_THAT(cache.Open(kUser, Path(directory_ / "link")),
              StatusIs(Code::kPermissionDenied, HasSubstr("leaves the allowed root")));
  EXPECT_THAT(cache.Open(kUser, Path((directory_ / "link/a.npy").string())),
              StatusIs(Code::kPermissionDenied));
  EXPECT_FALSE(watch.heard());
  DIR* const listed = ::opendir(folder.c_str());  // which it would have heard
  ASSERT_NE(listed, nullptr);
  ::closedir(listed);
  EXPECT_TRUE(watch.heard());
}

}  // namespace
}  // namespace pinfeed
