// SPDX-License-Identifier: Apache-2.0
// A feed that an honest fake daemon serves.
#pragma once

#include "pinfeed/pinfeed.hpp"
#include "tests/support/log_capture.h"
#include "tests/support/testing.h"
#include "tests/unit/client/client_fake_daemon.h"

namespace pinfeed {

class ServedFeedTest : public ::testing::Test {
 protected:
  TempDir dir_;
  LogCapture log_;
  FakeDaemon daemon_{dir_.path()};
  Feed feed_{kSpec, {.address = daemon_.address()}};
  FakeSession& session_ = daemon_.Session(0);
};

}  // namespace pinfeed
