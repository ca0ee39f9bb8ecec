// SPDX-License-Identifier: Apache-2.0
// For tests of libpinfeed against a real daemon in another process: a daemon with tokens, and options to open
// them.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "pinfeed/pinfeed.hpp"
#include "tests/support/daemon_fixture.h"
#include "tests/support/testing.h"

namespace pinfeed {

inline constexpr size_t kSequence = 8;
inline constexpr size_t kSamples = 100;

class ClientDaemonTest : public ::testing::Test {
 protected:
  ClientDaemonTest() {
    WriteTokens(dir_, kSamples * kSequence + 1);
    Start();
  }

  void Start() { daemon_ = DaemonProcess::Serve(dir_.path()); }
  void TearDown() override { EXPECT_EQ(daemon_->Stop(), 0) << daemon_->Log(); }
  std::string Spec(const std::string& more = "") const {
    return R"({"dataset": {"path": ")" + (dir_ / "tokens.bin").string() +
           R"(", "sequence_length": 8}, "batch_size": 7)" + more + "}";
  }
  FeedOptions Options(std::string cursor = "") const {
    FeedOptions options;
    options.address = (dir_ / "pinfeed.sock").string();
    options.cursor_json = std::move(cursor);
    options.reconnect_timeout = std::chrono::seconds(30);
    return options;
  }

  TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
};

}  // namespace pinfeed
