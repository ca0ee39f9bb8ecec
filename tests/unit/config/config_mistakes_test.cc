// SPDX-License-Identifier: Apache-2.0
// What is said of mistakes in the file.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/config/config.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(ConfigMistakesTest, AMistakeIsToldWithWhatTheKeyTakes) {
  TempDir directory;
  for (const auto& [text, told] : std::vector<std::pair<std::string, std::string>>{
           {"gpus = true", ":1: gpus: expected auto, on or off, found a boolean"},
           {"log_level = 3",
            ":1: log_level: expected one of trace, debug, info, warning, error, found the integer 3"},
           {"http_listen = 9467", ":1: http_listen: expected ADDRESS:PORT"},
           {"allowed_uids = \"*\"", ":1: allowed_uids: expected an array, such as"},
           {"pool_bytes = \"8G\"", "(B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)"},
           {"gpus = auto", "is in quotes"},
           {"pool_bytes = 8GiB", "is in quotes"},
           {"http_listen = 127.0.0.1:9467", "is in quotes"},
           {"socket_group = trainers", "is in quotes"},
           {"pool-bytes = \"8GiB\"", ":1: pool-bytes: unknown key; did you mean pool_bytes?"},
           {"[dataset.a]\npath = \"/a\"", ":1: dataset: unknown key; did you mean [datasets.NAME]?"},
           {"[[datasets]]\npath = \"/a\"", ":1: datasets: expected tables [datasets.NAME]"}}) {
    const std::string path = directory.Write("c.toml", text + "\n").string();
    EXPECT_THAT(ParseCommandLine({"--check", "--config", path}, {}),
                StatusIs(Code::kInvalidArgument, HasSubstr(told)))
        << text;
  }
}

TEST(ConfigMistakesTest, OfQuotesIsToldOnlyWhereTheyAreMissing) {
  TempDir directory;
  for (const char* const text : {"workers = 2\nworkers = 3\n", "gpus = \"on\"\ngpus = \"off\"\n",
                                 "pool_bytes \"8GiB\"\n", "gpus = \"on\" workers = 3\n"}) {
    const std::string path = directory.Write("c.toml", std::string_view(text)).string();
    EXPECT_THAT(ParseCommandLine({"--check", "--config", path}, {}),
                StatusIs(Code::kInvalidArgument, Not(HasSubstr("quotes"))))
        << text;
  }
}

}  // namespace
}  // namespace pinfeed
