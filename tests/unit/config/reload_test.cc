// SPDX-License-Identifier: Apache-2.0
#include "server/config/reload.h"

#include "server/config/config_keys.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

CommandLine Parsed(const TempDir& directory, const std::string& text) {
  const std::string file = directory.Write("pinfeed.toml", text).string();
  Result<CommandLine> parsed = ParseCommandLine({"--config", file}, {});
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  return *std::move(parsed);
}

TEST(ReloadTest, WhatCanChangeDoesAndTheRestIsNamedWithWhatStays) {
  TempDir directory;
  const CommandLine running = Parsed(directory, "allowed_uids = [1]\npool_bytes = \"1GiB\"\nworkers = 2\n");
  const CommandLine loaded =
      Parsed(directory, "allowed_uids = [2]\nlog_level = \"debug\"\npool_bytes = \"2GiB\"\nworkers = 2\n");
  const Reload reload = MergeReloaded(running, loaded);
  EXPECT_THAT(reload.changed, ElementsAre("allowed_uids = [\"2\"]", "log_level = \"debug\""));
  const std::string file = (directory / "pinfeed.toml").string();
  EXPECT_THAT(reload.need_restart,
              ElementsAre("pool_bytes = \"2147483648B\" (" + file + ":3); \"1073741824B\" stays"));
  EXPECT_EQ(reload.next.config.allowed_uids.uids, std::set<uint32_t>{2});
  EXPECT_EQ(reload.next.config.log_level, "debug");
  EXPECT_EQ(reload.next.config.pool_bytes.bytes, uint64_t{1} << 30);
}

// What waits for a restart waits however often the file is loaded, until the file says again what is in
// force.
TEST(ReloadTest, WhatNeedsARestartIsNamedUntilItIsTakenBack) {
  TempDir directory;
  const CommandLine running = Parsed(directory, "workers = 2\n");
  const CommandLine loaded = Parsed(directory, "workers = 3\n");
  const Reload once = MergeReloaded(running, loaded);
  const Reload twice = MergeReloaded(once.next, loaded);
  EXPECT_THAT(twice.need_restart, ElementsAre(HasSubstr("workers = 3")));
  EXPECT_THAT(MergeReloaded(twice.next, running).need_restart, IsEmpty());
}

TEST(ReloadTest, DatasetsAreAddedChangedAndRemoved) {
  TempDir directory;
  const CommandLine running = Parsed(
      directory, "[datasets.a]\npath = \"/a\"\n[datasets.b]\npath = \"/b\"\n[datasets.c]\npath = \"/c\"\n");
  const CommandLine loaded = Parsed(
      directory, "[datasets.b]\npath = \"/b\"\n[datasets.c]\npath = \"/d\"\n[datasets.e]\npath = \"/e\"\n");
  const Reload reload = MergeReloaded(running, loaded);
  EXPECT_THAT(reload.changed, ElementsAre("datasets.c: changed", "datasets.e: added", "datasets.a: removed"));
  EXPECT_EQ(reload.next.config.datasets.size(), 3U);
  EXPECT_EQ(reload.next.config.datasets.at("c").path, "/d");
}

// Each key in turn is either taken over or named: none is lost.
TEST(ReloadTest, EveryKeyIsEitherLiveOrWaits) {
  const CommandLine running = *ParseCommandLine({}, {});
  for (const ConfigKey& key : ConfigKeys()) {
    CommandLine loaded = running;
    bool set = false;
    for (const char* value :
         {"7", "/elsewhere", "debug", "json", "off", "off:1", "127.0.0.1:7", "0600", "77s"}) {
      set = set || (key.set(ConfigValue::Text(value), loaded.config).ok() &&
                    key.print(loaded.config) != key.print(running.config));
    }
    ASSERT_TRUE(set) << key.name;
    const Reload reload = MergeReloaded(running, loaded);
    const std::string name(key.name);
    EXPECT_EQ(reload.changed.size(), IsLive(name) ? 1U : 0U) << name;
    EXPECT_EQ(reload.need_restart.size(), IsLive(name) ? 0U : 1U) << name;
    const Config& expected = IsLive(name) ? loaded.config : running.config;
    EXPECT_EQ(key.print(reload.next.config), key.print(expected)) << name;
  }
}

}  // namespace
}  // namespace pinfeed
