// SPDX-License-Identifier: Apache-2.0
// The tool `pinfeed` as people and health checks run it, against a real daemon.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/daemon_fixture.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

class CliTest : public ::testing::Test {
 protected:
  CliTest() : tokens_(WriteTokens(dir_, 8001).string()) {}
  ProgramResult Run(std::vector<std::string> words) const {
    words.insert(words.begin(), PINFEED_TEST_TOOL);
    return RunProgram(words, (dir_ / "pinfeed.sock").string());
  }

  TempDir dir_;
  std::string tokens_;
};

TEST_F(CliTest, StatusTellsADaemonFromNone) {
  const ProgramResult none = Run({"status"});
  EXPECT_EQ(none.exit_status, 1);
  EXPECT_THAT(none.output, HasSubstr("is the daemon running?"));
  const auto daemon = DaemonProcess::Serve(dir_.path());
  const ProgramResult ready = Run({"status"});
  EXPECT_EQ(ready.exit_status, 0) << ready.output;
  EXPECT_THAT(ready.output, AllOf(HasSubstr("is ready, up "), HasSubstr("no feeds are open")));
  const ProgramResult json = Run({"status", "--json"});
  EXPECT_EQ(json.exit_status, 0);
  EXPECT_EQ(nlohmann::json::parse(json.output)["state"], "ready");
}

TEST_F(CliTest, DatasetsListsNamesAndRoots) {
  const std::string config =
      dir_.Write("pinfeedd.toml", "[datasets.text]\npath = \"" + tokens_ + "\"\nsequence_length = 8\n")
          .string();
  const auto daemon = DaemonProcess::Serve(dir_.path(), {"--config", config});
  const ProgramResult list = Run({"datasets"});
  EXPECT_EQ(list.exit_status, 0) << list.output;
  EXPECT_THAT(list.output, AllOf(HasSubstr("text"), HasSubstr("1,000"),
                                 HasSubstr("any path below " + dir_.path().string())));
}

TEST_F(CliTest, BenchReportsWhatItDrained) {
  const auto daemon = DaemonProcess::Serve(dir_.path());
  const ProgramResult bench = Run({"bench", tokens_, "--sequence-length", "8", "--batch-size", "10",
                                   "--batches", "50", "--shuffle", "--slots", "5", "--json"});
  ASSERT_EQ(bench.exit_status, 0) << bench.output;
  const nlohmann::json report = nlohmann::json::parse(bench.output);
  EXPECT_EQ(report["batches"], 50);
  EXPECT_EQ(report["samples"], 500);
  EXPECT_EQ(report["bytes"], 500 * 8 * 2 * 8);
  EXPECT_EQ(report["feed"]["slots"], 5);
  const ProgramResult text = Run({"bench", tokens_, "--sequence-length", "8", "--batches", "5"});
  EXPECT_THAT(text.output, HasSubstr("samples/s"));
  EXPECT_THAT(text.output, Not(HasSubstr(" 0.00 ")));
}

TEST_F(CliTest, FaultsOfTheSpecAreShown) {
  const auto daemon = DaemonProcess::Serve(dir_.path());
  const ProgramResult fault = Run({"bench", "--spec", R"({"batchsize": 3})"});
  EXPECT_EQ(fault.exit_status, 1);
  EXPECT_THAT(fault.output, HasSubstr("batchsize"));
}

TEST_F(CliTest, WrongUsageHasItsOwnExitStatus) {
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"bench", "--spec", "{"}, "is not JSON"},
      {{"bench"}, "give a dataset"},
      {{"bnech"}, "bnech"},
      {{"bench", "x", "--batch-size", "-3"}, "--batch-size"},
      {{"bench", "x", "--batchsize", "3"}, "not expected: --batchsize 3 (see pinfeed --help)"},
      {{"bench", "x", "--seconds=", "3"}, "--seconds= has no value"},
      {{"bench", "x", "--seconds", "nan"}, "nan is not a number"},
      {{"bench", "x", "--seconds", "inf"}, "inf is not a number"},
      {{"bench", "x", "--seconds", "-1"}, "-1 is not a number"},
      {{"bench", "x", "--step-ms", "nan"}, "nan is not a number"},
      {{"bench", "--spec", R"({"batch_size": 1e400})"}, "--spec holds a number that is too large"},
      {{"bench", "--spec", "{\"a\": \u00e9\u00e9"},
       "--spec is not JSON: the fault is at the end of '{\"a\": \u00e9'"},
      {{"bench", "--spec", "[]"}, "must be a JSON object"},
      {{"bench", "\xff"}, "not UTF-8"},
      {{"bench", "x", "--transforms", "random_resized_crop"}, "neither a JSON list nor a file"},
      {{"bench", "x", "--transforms", "{}"}, "must be a JSON list"},
      {{"peek"}, "dataset is required"},
      {{"logs", "--level", "loud"}, "loud not in"},
      {{}, "the daemon that feeds training batches"},
      {{"--address", "/x"}, "Shows what the daemon is doing"},
  };
  for (const auto& [words, reason] : wrong) {
    const ProgramResult result = Run(words);
    EXPECT_EQ(result.exit_status, 2) << reason;
    EXPECT_THAT(result.output, HasSubstr(reason));
    EXPECT_THAT(result.output, Not(HasSubstr("json.exception")));
  }
  const ProgramResult help = Run({"--help"});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(help.output, HasSubstr("Exit status: 0 done; 1 it failed"));
  EXPECT_EQ(Run({"--version"}).exit_status, 0);
}

TEST_F(CliTest, AnswerThatDoesNotArriveIsAFailure) {
  const auto daemon = DaemonProcess::Serve(dir_.path());
  for (const char* words : {"status", "status --json", "datasets", "--help"}) {
    const ProgramResult full =
        RunProgram({"/bin/sh", "-c", std::string("\"$0\" ") + words + " >/dev/full", PINFEED_TEST_TOOL},
                   (dir_ / "pinfeed.sock").string());
    EXPECT_EQ(full.exit_status, 1) << words;
    EXPECT_THAT(full.output, HasSubstr("write the answer to stdout: No space left on device")) << words;
  }
}

TEST_F(CliTest, DirectoryInPlaceOfTheSocketIsNamed) {
  const ProgramResult result = Run({"--address", dir_.path().string(), "status"});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.output, HasSubstr("is a directory; the daemon's socket lies inside: " +
                                       (dir_ / "pinfeed.sock").string()));
}

TEST_F(CliTest, TheAddressOfTheLifelineIsAnsweredWithTheSocketForRequests) {
  const auto daemon = DaemonProcess::Serve(dir_.path());
  const ProgramResult result = Run({"--address", (dir_ / "lifeline.sock").string(), "status"});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.output, HasSubstr("that socket is of another kind"));
}

TEST_F(CliTest, PeekShowsNumbersWhereThereAreNoImages) {
  const std::string config =
      dir_.Write("pinfeedd.toml", "[datasets.text]\npath = \"" + tokens_ + "\"\nsequence_length = 8\n")
          .string();
  const auto daemon = DaemonProcess::Serve(dir_.path(), {"--config", config});
  const ProgramResult peek = Run({"peek", "text", "-n", "3"});
  EXPECT_EQ(peek.exit_status, 0) << peek.output;
  EXPECT_THAT(peek.output, HasSubstr("[16, 17, 18, 19, 20, 21, ...]"));
  const std::string ones = dir_.Write("ones.bin", std::string("\1\1\0\0\1\1\0\0\1\1\0", 12)).string();
  const ProgramResult wide =
      Run({"peek", ones, "--sequence-length", "2", "--stride", "1", "--token-dtype", "uint32"});
  EXPECT_THAT(wide.output, HasSubstr("[257, 257]"));
}

}  // namespace
}  // namespace pinfeed
