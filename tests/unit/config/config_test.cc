// SPDX-License-Identifier: Apache-2.0
#include "server/config/config.h"

#include <sys/stat.h>

#include <utility>

#include "common/os/host_limits.h"
#include "tests/support/parameters.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

using Environment = std::map<std::string, std::string>;

TEST(ConfigTest, DefaultsAreValid) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line, ParseCommandLine({}, {}));
  EXPECT_EQ(line.action, Action::kRun);
  EXPECT_EQ(line.config.socket_dir, "/run/pinfeed");
  EXPECT_EQ(line.config.http_listen, "127.0.0.1:9467");
  EXPECT_FALSE(line.config.allowed_uids.any);
  EXPECT_EQ(line.config.pool_bytes.share, 0.25);
  EXPECT_EQ(line.origins.at("workers"), "default");
}

TEST(ConfigTest, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  TempDir directory;
  const std::string file =
      directory.Write("c.toml", "workers = 2\nmax_sessions = 3\ndefault_slots = 5\n").string();
  ASSERT_OK_AND_ASSIGN(const CommandLine line,
                       ParseCommandLine({"--config", file, "--workers", "8"},
                                        {{"PINFEED_WORKERS", "4"}, {"PINFEED_MAX_SESSIONS", "6"}}));
  EXPECT_EQ(line.config.workers, 8U);
  EXPECT_EQ(line.origins.at("workers"), "flag --workers");
  EXPECT_EQ(line.config.max_sessions, 6U);
  EXPECT_EQ(line.origins.at("max_sessions"), "environment PINFEED_MAX_SESSIONS");
  EXPECT_EQ(line.config.default_slots, 5U);
  EXPECT_EQ(line.origins.at("default_slots"), file + ":3");
}

TEST(ConfigTest, NotesWhatOfTheFileIsOverriddenAndDiffers) {
  TempDir directory;
  const std::string file =
      directory.Write("c.toml", "workers = 3\nmax_sessions = 9\ndataset_cache = 2\n").string();
  ASSERT_OK_AND_ASSIGN(const CommandLine parsed,
                       ParseCommandLine({"--config", file, "--max-sessions=9", "--default-slots=5"},
                                        {{"PINFEED_WORKERS", "4"}}));
  EXPECT_THAT(parsed.overridden, ElementsAre(HasSubstr("workers = 3 (" + file +
                                                       ":1) is not in force: environment PINFEED_WORKERS "
                                                       "overrides it")));
}

TEST(ConfigTest, ReadsEveryKindOfValueFromTheFile) {
  TempDir directory;
  const std::string file =
      directory
          .Write("c.toml",
                 "socket_mode = 0o600\nallowed_uids = [1000, \"1001\"]\npool_bytes = \"8GiB\"\n"
                 "allowed_roots = [\"/a\", \"/b c\"]\nhttp_listen = \"[::1]:0\"\nlog_format = \"json\"\n"
                 "pending_timeout = \"1500ms\"\ndrain_timeout = 2\n"
                 "[datasets.web-1]\npath = \"/data/t.bin\"\nformat = \"tokens\"\nsequence_length = 128\n"
                 "token_dtype = \"uint32\"\n")
          .string();
  ASSERT_OK_AND_ASSIGN(const CommandLine line, ParseCommandLine({}, {{"PINFEED_CONFIG", file}}));
  const Config& config = line.config;
  EXPECT_EQ(config.socket_mode, 0600U);
  EXPECT_EQ(config.allowed_uids.uids, (std::set<uint32_t>{1000, 1001}));
  EXPECT_EQ(config.pool_bytes.bytes, 8ULL << 30);
  EXPECT_EQ(config.allowed_roots, (std::vector<std::string>{"/a", "/b c"}));
  EXPECT_EQ(config.http_listen, "[::1]:0");
  EXPECT_EQ(config.log_format, LogFormat::kJson);
  EXPECT_EQ(config.pending_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(config.drain_timeout, std::chrono::seconds(2));
  const DatasetSpec& dataset = config.datasets.at("web-1");
  EXPECT_EQ(dataset.name, "web-1");
  EXPECT_EQ(dataset.options,
            (ParameterMap{{"sequence_length", Number(128)}, {"token_dtype", Word("uint32")}}));
}

TEST(ConfigTest, AVariableThatIsNearlyASettingIsAFault) {
  EXPECT_THAT(
      ParseCommandLine({}, {{"PINFEED_WORKER", "1"}}).status().message(),
      HasSubstr("environment PINFEED_WORKER: there is no such setting; did you mean PINFEED_WORKERS?"));
  EXPECT_THAT(ParseCommandLine({}, {{"PINFEED_GPU", "off"}}).status().message(), HasSubstr("PINFEED_GPUS?"));
  for (const char* other : {"PINFEED_ADDRESS", "PINFEED_DAEMON", "PINFEED_PORT", "PINFEED_SERVICE_HOST",
                            "PINFEED_PORT_9467_TCP", "PINFEED_ADMIN_PORT", "PINFEED_BUILD_DIR", "WORKER"})
    EXPECT_OK(ParseCommandLine({}, {{other, "1"}}).status()) << other;
  EXPECT_OK(ParseCommandLine({}, {{"PINFEED_WORKER", "tcp://10.0.0.1:80"}}).status());
}

TEST(ConfigTest, ListsEveryFaultWithItsPlace) {
  TempDir directory;
  const std::string file =
      directory
          .Write("c.toml",
                 "workers = \"x\"\nunknown_key = 1\ndefault_slots = 2\npool_bytes = true\n"
                 "[datasets.a]\npath = \"relative\"\ncolour = 3\nformat = \"zip\"\n"
                 "[datasets.\"b c\"]\nformat = \"npy\"\n")
          .string();
  const Status status =
      ParseCommandLine({"--config", file, "--log-level=loud"}, {{"PINFEED_SOCKET_MODE", "9"}}).status();
  EXPECT_THAT(
      status,
      StatusIs(
          Code::kInvalidArgument,
          AllOf(HasSubstr(file + ":1: workers: expected an integer from 0 to 4096, found the string 'x'"),
                HasSubstr(file + ":2: unknown_key: unknown key"),
                HasSubstr(file + ":3: default_slots: expected an integer from 3 to 64, found the integer 2"),
                HasSubstr(file + ":4: pool_bytes: expected a size"))));
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(file + ":6: datasets.a.path: expected an absolute path"),
                    HasSubstr(file + ":7: datasets.a.colour: unknown key"),
                    HasSubstr(file + ":8: datasets.a.format: dataset format 'zip' is unknown; known are "
                                     "image_folder, manifest, npy, tokens and webdataset"),
                    HasSubstr("a name consists of"), HasSubstr("datasets.b c: path is missing"),
                    HasSubstr("flag --log-level: log_level: expected one of"),
                    HasSubstr("environment PINFEED_SOCKET_MODE: socket_mode: expected permission bits")));
}

TEST(ConfigTest, SaysWhereTheTomlIsBroken) {
  TempDir directory;
  const std::string file = directory.Write("c.toml", "workers = 1\nworkers = \n").string();
  EXPECT_THAT(ParseCommandLine({"--config", file}, {}),
              StatusIs(Code::kInvalidArgument, HasSubstr(file + ":2: ")));
  EXPECT_THAT(ParseCommandLine({"--config", "/nonexistent.toml"}, {}),
              StatusIs(Code::kInvalidArgument, HasSubstr("/nonexistent.toml")));
}

TEST(ConfigTest, RefusesWhatTheParserWouldNotSurvive) {
  TempDir directory;
  std::string deep = "a";
  for (int i = 0; i < 31000; ++i) deep += ".a";
  for (const std::string& text : {deep + " = 1\n", "[" + deep + "]\n", "x = {" + deep + " = 1}\n"}) {
    const std::string file = directory.Write("c.toml", "workers = 1\n" + text).string();
    EXPECT_THAT(ParseCommandLine({"--config", file}, {}),
                StatusIs(Code::kInvalidArgument, HasSubstr(file + ":2: the key has too many dotted parts")));
  }
  const std::string dots =
      "allowed_roots = [\"/a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s\"]  # a.b.c.d.e.f.g.h\n"
      "# .................... 'workers .................\nworkers = 1\n";
  EXPECT_OK(ParseCommandLine({"--config", directory.Write("d.toml", dots).string()}, {}).status());
}

TEST(ConfigTest, DoesNotWaitForAWriterOfItsFile) {
  TempDir directory;
  const std::string fifo = directory / "c.toml";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(ParseCommandLine({"--config", fifo}, {}),
              StatusIs(Code::kInvalidArgument, HasSubstr("a pipe without a writer")));
}

TEST(ConfigTest, RefusesUnknownFlagsAndMissingValues) {
  EXPECT_THAT(ParseCommandLine({"--wrokers=3"}, {}), StatusIs(Code::kInvalidArgument, HasSubstr("wrokers")));
  EXPECT_THAT(ParseCommandLine({"--workers"}, {}), StatusIs(Code::kInvalidArgument, HasSubstr("--workers")));
  EXPECT_THAT(ParseCommandLine({"--one", "two", "--three"}, {}),
              StatusIs(Code::kInvalidArgument, HasSubstr("not expected: --one two --three (")));
  EXPECT_THAT(ParseCommandLine({"stray"}, {}), StatusIs(Code::kInvalidArgument, HasSubstr("stray")));
  EXPECT_THAT(ParseCommandLine({"--socket-group=", "--workers=4"}, {}),
              StatusIs(Code::kInvalidArgument, HasSubstr("--socket-group= has no value")));
}

TEST(ConfigTest, ReadsSizesSharesAndTimes) {
  const std::pair<const char*, uint64_t> sizes[] = {
      {"1024", 1024}, {"1.5KiB", 1536}, {"2 MiB", 2 << 20}, {"3GB", 3'000'000'000}, {"1TiB", 1ULL << 40}};
  for (const auto& [text, bytes] : sizes) {
    ASSERT_OK_AND_ASSIGN(const CommandLine line, ParseCommandLine({std::string("--pool-bytes=") + text}, {}));
    EXPECT_EQ(line.config.pool_bytes.bytes, bytes) << text;
  }
  ASSERT_OK_AND_ASSIGN(const CommandLine share, ParseCommandLine({"--pool-bytes=12.5%"}, {}));
  EXPECT_EQ(share.config.pool_bytes.bytes, 0U);
  EXPECT_EQ(share.config.pool_bytes.share, 0.125);
  EXPECT_FALSE(share.config.cache_bytes.IsSet());
  for (const char* off : {"off", "0"}) {
    ASSERT_OK_AND_ASSIGN(const CommandLine line, ParseCommandLine({std::string("--cache-bytes=") + off}, {}));
    EXPECT_FALSE(line.config.cache_bytes.IsSet());
    EXPECT_THAT(PrintConfig(line), HasSubstr("cache_bytes = \"off\""));
  }
  ASSERT_OK_AND_ASSIGN(const CommandLine cache, ParseCommandLine({"--cache-bytes=8GiB"}, {}));
  EXPECT_EQ(cache.config.cache_bytes.bytes, 8ULL << 30);
  for (const char* wrong :
       {"", "0", "-1", "8XB", "GiB", "101%", "0%", "1e9999", "99999999TiB", "0x10", "nan"}) {
    EXPECT_THAT(ParseCommandLine({std::string("--pool-bytes=") + wrong}, {}),
                StatusIs(Code::kInvalidArgument))
        << wrong;
  }
  const std::pair<const char*, int> times[] = {
      {"5", 5000}, {"5s", 5000}, {"20ms", 20}, {"2min", 120000}, {"0", 0}};
  for (const auto& [text, ms] : times) {
    ASSERT_OK_AND_ASSIGN(const CommandLine line,
                         ParseCommandLine({std::string("--drain-timeout=") + text}, {}));
    EXPECT_EQ(line.config.drain_timeout.count(), ms) << text;
  }
  for (const char* wrong : {"-1s", "25h", "5 fortnights", "s"}) {
    EXPECT_THAT(ParseCommandLine({std::string("--drain-timeout=") + wrong}, {}),
                StatusIs(Code::kInvalidArgument))
        << wrong;
  }
}

TEST(ConfigTest, ChecksUidsRootsAndAddresses) {
  ASSERT_OK_AND_ASSIGN(const CommandLine any, ParseCommandLine({"--allowed-uids=*"}, {}));
  EXPECT_TRUE(any.config.allowed_uids.any);
  for (const char* wrong :
       {"--allowed-uids=root",    "--allowed-uids=-1",         "--allowed-uids=4294967295",
        "--allowed-roots=data",   "--http-hosts=a b",          "--http-hosts=http://a",
        "--http-listen=9467",     "--http-listen=localhost:1", "--http-listen=1.2.3.4:65536",
        "--http-listen=:80",      "--http-listen=999.1.1.1:1", "--http-listen=[::1::2]:1",
        "--http-hosts=999.1.1.1", "--http-hosts=node7:9467",   "--http-hosts=[node7]",
        "--socket-mode=1777",     "--socket-mode=0o1777",      "--socket-mode=0o",
        "--socket-mode=0x1ff",    "--socket-mode=0o-1",        "--socket-mode=888",
        "--socket-dir="}) {
    EXPECT_THAT(ParseCommandLine({wrong}, {}), StatusIs(Code::kInvalidArgument)) << wrong;
  }
  ASSERT_OK_AND_ASSIGN(const CommandLine off, ParseCommandLine({"--http-listen=off"}, {}));
  EXPECT_EQ(off.config.http_listen, "");
  EXPECT_TRUE(ParseCommandLine({"--http-hosts=node7,10.0.0.7,::1,[::1],7.example"}, {}).ok());
}

TEST(ConfigTest, NoClientCouldConnectInNoTime) {
  EXPECT_THAT(ParseCommandLine({"--pending-timeout=0"}, {}),
              StatusIs(Code::kInvalidArgument, HasSubstr("a time from 1 ms to 24 hours")));
  EXPECT_OK(ParseCommandLine({"--drain-timeout=0"}, {}).status());
  EXPECT_THAT(ParseCommandLine({"--stuck-timeout=0.4ms"}, {}),  // 0 would be never
              StatusIs(Code::kInvalidArgument, HasSubstr("stuck_timeout: expected a time from 0 ms")));
}

TEST(ConfigTest, AModeIsNotReadAsADecimalNumber) {
  const TempDir dir;
  const std::string path = dir.Write("config.toml", "socket_mode = 440\n").string();
  EXPECT_THAT(ParseCommandLine({"--config=" + path}, {}),
              StatusIs(Code::kInvalidArgument,
                       HasSubstr("socket_mode: expected permission bits in octal, such as 0o660")));
}

TEST(ConfigTest, ModesAreOctalInEachNotation) {
  for (const char* mode : {"0o666", "0666", "666"}) {
    ASSERT_OK_AND_ASSIGN(const CommandLine line,
                         ParseCommandLine({std::string("--socket-mode=") + mode}, {}));
    EXPECT_EQ(line.config.socket_mode, 0666U) << mode;
  }
}

TEST(ConfigTest, AnAddressThatIsNoneIsNamedWithItsLine) {
  TempDir directory;
  const std::string path =
      directory.Write("pinfeedd.toml", "workers = 1\nhttp_listen = \"999.1.1.1:1\"\n").string();
  EXPECT_THAT(ParseCommandLine({"--check", "--config", path}, {}),
              StatusIs(Code::kInvalidArgument,
                       HasSubstr(path + ":2: http_listen: expected ADDRESS:PORT with a numeric address")));
}

TEST(ConfigTest, AdminKeysComeTogetherWithoutWildcards) {
  const std::vector<std::string> all = {"--admin-listen=[::]:9468", "--admin-cert=/c", "--admin-key=/k",
                                        "--admin-ca=/a", "--admin-clients=ops.example, spiffe://x/y"};
  ASSERT_OK_AND_ASSIGN(const CommandLine line, ParseCommandLine(all, {}));
  EXPECT_EQ(line.config.admin_clients, (std::vector<std::string>{"ops.example", "spiffe://x/y"}));
  for (size_t left_out = 0; left_out < all.size(); ++left_out) {
    std::vector<std::string> some = all;
    some.erase(some.begin() + static_cast<std::ptrdiff_t>(left_out));
    EXPECT_THAT(ParseCommandLine(some, {}), StatusIs(Code::kInvalidArgument, HasSubstr("requires admin_")))
        << all[left_out];
  }
  for (const char* wrong :
       {"--admin-clients=*", "--admin-clients=*.example", "--admin-cert=c.pem", "--admin-listen=node7:9468",
        "--admin-listen=9468", "--admin-listen=1.2.3.999:1"}) {
    std::vector<std::string> arguments = all;
    arguments.emplace_back(wrong);
    EXPECT_THAT(ParseCommandLine(arguments, {}), StatusIs(Code::kInvalidArgument, HasSubstr("expected")))
        << wrong;
  }
  EXPECT_TRUE(ParseCommandLine({"--admin-listen=off"}, {}).ok());
}

TEST(ConfigTest, PrivateModeHasItsOwnDefaults) {
  EXPECT_THAT(ParseCommandLine({"--private"}, {}),
              StatusIs(Code::kInvalidArgument, HasSubstr("--lifetime-fd")));
  ASSERT_OK_AND_ASSIGN(const CommandLine line,
                       ParseCommandLine({"--private", "--lifetime-fd=5", "--allowed-roots=/data"}, {}));
  EXPECT_TRUE(line.private_mode);
  EXPECT_EQ(line.lifetime_fd, 5);
  EXPECT_EQ(line.config.http_listen, "");
  EXPECT_EQ(line.config.socket_mode, 0600U);
  EXPECT_EQ(line.config.allowed_roots, (std::vector<std::string>{"/data"}));
}

TEST(ConfigTest, PrintedConfigurationReadsBackAsItself) {
  TempDir directory;
  const std::string first =
      directory
          .Write("a.toml",
                 "workers = 3\npool_bytes = \"7%\"\nallowed_roots = [\"/a\\\"b\"]\nallowed_uids = [\"*\"]\n"
                 "[datasets.t]\npath = \"/t.bin\"\nsequence_length = 4\n")
          .string();
  ASSERT_OK_AND_ASSIGN(const CommandLine before, ParseCommandLine({"--config", first, "--print-config"}, {}));
  EXPECT_EQ(before.action, Action::kPrintConfig);
  const std::string text = PrintConfig(before);
  EXPECT_THAT(text, HasSubstr("# from: " + first + ":1\nworkers = 3"));
  EXPECT_THAT(text, HasSubstr("pool_bytes = \"7%\""));
  ASSERT_OK_AND_ASSIGN(const CommandLine after,
                       ParseCommandLine({"--config", directory.Write("b.toml", text).string()}, {}));
  EXPECT_EQ(after.config.allowed_roots, before.config.allowed_roots);
  EXPECT_EQ(after.config.datasets, before.config.datasets);
  EXPECT_EQ(after.config.pool_bytes.share, before.config.pool_bytes.share);
  EXPECT_EQ(after.config.socket_mode, before.config.socket_mode);
  EXPECT_TRUE(after.config.allowed_uids.any);
}

TEST(ConfigTest, HelpAndVersionArePrinted) {
  ASSERT_OK_AND_ASSIGN(const CommandLine help, ParseCommandLine({"--help"}, {}));
  EXPECT_EQ(help.action, Action::kPrintAndExit);
  EXPECT_THAT(help.text, AllOf(HasSubstr("--pool-bytes"), HasSubstr("--lifetime-fd")));
  ASSERT_OK_AND_ASSIGN(const CommandLine version, ParseCommandLine({"--version"}, {}));
  EXPECT_THAT(version.text, HasSubstr("pinfeedd "));
}

// /proc and /sys as a host with these limits has them.
class HostLimitsTest : public ::testing::Test {
 protected:
  HostLimitsTest() {
    root_.Write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\n");
  }
  TempDir root_;
};

TEST_F(HostLimitsTest, PhysicalMemoryAloneLimits) {
  root_.Write("proc/self/cgroup", "0::/user.slice\n");
  root_.Write("sys/fs/cgroup/user.slice/memory.max", "max\n");
  ASSERT_OK_AND_ASSIGN(const HostMemory memory, ReadHostMemory(root_.path().string()));
  EXPECT_EQ(memory.limit_bytes, 1000U * 1024);
  EXPECT_EQ(memory.available_bytes, 600U * 1024);
  EXPECT_EQ(memory.limited_by, "physical memory");
}

TEST_F(HostLimitsTest, TheTightestGroupOnTheWayUpLimits) {
  root_.Write("proc/self/cgroup", "0::/a/b\n");
  root_.Write("sys/fs/cgroup/a/b/memory.max", "500000\n");
  root_.Write("sys/fs/cgroup/a/memory.max", "400000\n");
  root_.Write("sys/fs/cgroup/a/memory.current", "100000\n");
  root_.Write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  root_.Write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  ASSERT_OK_AND_ASSIGN(const HostMemory memory, ReadHostMemory(root_.path().string()));
  EXPECT_EQ(memory.limit_bytes, 400000U);
  EXPECT_EQ(memory.available_bytes, 300000U);
  EXPECT_THAT(memory.limited_by, HasSubstr("/a/memory.max"));
  EXPECT_EQ(UsableCpus(8, root_.path().string()), 2U);  // 1.5 CPUs
  EXPECT_EQ(UsableCpus(1, root_.path().string()), 1U);
}

TEST_F(HostLimitsTest, ReadsVersionOneGroups) {
  root_.Write("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n");
  root_.Write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n");
  root_.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
  root_.Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "350000\n");
  root_.Write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1\n");
  root_.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
  root_.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  ASSERT_OK_AND_ASSIGN(const HostMemory memory, ReadHostMemory(root_.path().string()));
  EXPECT_EQ(memory.limit_bytes, 300000U);
  EXPECT_EQ(memory.available_bytes, 0U);
  EXPECT_EQ(UsableCpus(8, root_.path().string()), 3U);
}

TEST_F(HostLimitsTest, CachedFilesOfAGroupAreAvailable) {
  const std::string stat =
      "shmem 50000\ninactive_file 30000\nactive_file 20000\ntotal_shmem 50000\ntotal_inactive_file "
      "70000\ntotal_active_file 10000\n";
  root_.Write("proc/self/cgroup", "4:memory:/v1\n0::/v2\n");
  root_.Write("sys/fs/cgroup/v2/memory.max", "400000\n");
  root_.Write("sys/fs/cgroup/v2/memory.current", "300000\n");
  root_.Write("sys/fs/cgroup/v2/memory.stat", stat);
  ASSERT_OK_AND_ASSIGN(HostMemory memory, ReadHostMemory(root_.path().string()));
  EXPECT_EQ(memory.available_bytes, 150000U);
  EXPECT_THAT(memory.available_by, HasSubstr("/v2/memory.max"));
  root_.Write("sys/fs/cgroup/memory/v1/memory.limit_in_bytes", "500000\n");
  root_.Write("sys/fs/cgroup/memory/v1/memory.usage_in_bytes", "450000\n");
  root_.Write("sys/fs/cgroup/memory/v1/memory.stat", stat);
  ASSERT_OK_AND_ASSIGN(memory, ReadHostMemory(root_.path().string()));
  EXPECT_EQ(memory.available_bytes, 130000U) << "of version 1 with the groups below";
  EXPECT_THAT(memory.available_by, HasSubstr("/v1/memory.limit_in_bytes"));
  EXPECT_THAT(memory.limited_by, HasSubstr("/v2/memory.max"));
  ASSERT_OK_AND_ASSIGN(memory, ReadHostMemory(root_.path().string(), 50000));
  EXPECT_EQ(memory.available_bytes, 50000U) << "enough without looking for more";
}

TEST_F(HostLimitsTest, SaysWhatCannotBeRead) {
  EXPECT_THAT(ReadHostMemory("/nonexistent"),
              StatusIs(Code::kNotFound, HasSubstr("open /nonexistent/proc/meminfo")));
  EXPECT_GE(AffinityCpus(), 1U);
}

}  // namespace
}  // namespace pinfeed
