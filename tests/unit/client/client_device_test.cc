// SPDX-License-Identifier: Apache-2.0
// When a client on a GPU asks for another backend, and when it does not: over the stand-in driver, with a
// daemon whose "device memory" is a file that no driver takes.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "pinfeed/pinfeed.h"
#include "tests/support/testing.h"
#include "tests/unit/client/client_fake_daemon.h"

namespace pinfeed {
namespace {

// Memory of a GPU, unless that has failed.
void OfferDevice(v1::OpenFeedResponse& offer) {
  v1::ArenaOffer& arena = *offer.mutable_arena();
  arena.set_backend(v1::FeedSpec::VMM_FD);
  arena.set_id(std::string(16, 'i'));
  arena.set_bytes(arena.bytes() + 4096);
  v1::OutputTensor* const label = offer.add_outputs();
  label->set_name("label");
  label->set_dtype(v1::INT64);
  label->set_tensor(1);
}

class ClientDeviceTest : public ::testing::Test {
 protected:
  // The error of opening a feed on GPU 0; OK when there is none.
  Status Open(FakeDaemon::Script script) {
    if (!script.offer) script.offer = &OfferDevice;
    daemon_ = std::make_unique<FakeDaemon>(dir_.path(), std::move(script));
    const std::string address = daemon_->address();
    pf_open_options options;
    pf_open_options_init(&options, sizeof(options));
    options.address = address.c_str();
    options.spec_json = kSpec;
    options.device = 0;
    pf_feed* feed = nullptr;
    const pf_result result = pf_open(&options, &feed);
    if (result != PF_OK) return {static_cast<Code>(result), pf_last_error()};
    pf_close(feed);
    return OkStatus();
  }

  // In none of the tries that a daemon gets which may be at its end.
  void ExpectNothingSaidOfTheBackend() {
    const size_t tries = daemon_->session_count();
    EXPECT_EQ(tries, 3U);
    for (size_t i = 0; i < tries; ++i) EXPECT_EQ(daemon_->Session(i).request.failed_backends_size(), 0);
  }

  const TempDir dir_;
  std::unique_ptr<FakeDaemon> daemon_;
};

TEST_F(ClientDeviceTest, ArenaThatCannotBeMappedIsToldAndAnotherBackendTaken) {
  int opened = 0;
  FakeDaemon::Script script;
  script.offer = [&](v1::OpenFeedResponse& offer) {
    if (++opened == 1) OfferDevice(offer);
  };
  EXPECT_OK(Open(std::move(script)));
  ASSERT_EQ(daemon_->session_count(), 2U);
  daemon_->WaitForBye(0);
  const v1::OpenFeedRequest& second = daemon_->Session(1).request;
  ASSERT_EQ(second.failed_backends_size(), 1);
  EXPECT_EQ(second.failed_backends(0).backend(), v1::FeedSpec::VMM_FD);
  EXPECT_THAT(second.failed_backends(0).reason(), HasSubstr("CUDA_ERROR_"));
}

// The daemon sees only that the client is not on the GPU. Another process, as the fault is of its first
// context.
TEST_F(ClientDeviceTest, RefusalNamesWhyThisProcessHasNoGpu) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ::setenv("PINFEED_STAND_IN_FAIL", "cuDevicePrimaryCtxRetain:1:2", 1);
        FakeDaemon::Script script;
        script.refuse = [](const v1::OpenFeedRequest&) {
          return grpc::Status(grpc::FAILED_PRECONDITION, "NVML does not list the client");
        };
        std::fprintf(stderr, "%s\n", Open(std::move(script)).ToString().c_str());
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0),
      "FAILED_PRECONDITION: .*NVML does not list the client; this process cannot use the GPU: open GPU 0 "
      ".*create its primary context: CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(ClientDeviceTest, WelcomeThatIsRefusedSaysNothingOfTheBackend) {
  FakeDaemon::Script script;
  script.welcome = [](LifelineFrame& frame) { frame.code = PF_UNAVAILABLE; };
  EXPECT_THAT(Open(std::move(script)), StatusIs(Code::kUnavailable, HasSubstr("refused the lifeline")));
  ExpectNothingSaidOfTheBackend();
}

TEST_F(ClientDeviceTest, PagesThatCannotBeUsedSayNothingOfTheBackend) {
  FakeDaemon::Script script;
  script.descriptors = [](FakeSession& session, std::vector<int>&) { session.page().version = 2; };
  EXPECT_THAT(Open(std::move(script)), StatusIs(Code::kInternal, HasSubstr("has version 2")));
  EXPECT_EQ(daemon_->session_count(), 1U);
  daemon_->WaitForBye(0);
}

TEST_F(ClientDeviceTest, DaemonThatGoesAwayMeanwhileSaysNothingOfTheBackend) {
  FakeDaemon::Script script;
  script.leave = true;
  EXPECT_THAT(Open(std::move(script)), StatusIs(Code::kUnavailable, HasSubstr("the daemon went away")));
  ExpectNothingSaidOfTheBackend();
}

}  // namespace
}  // namespace pinfeed
