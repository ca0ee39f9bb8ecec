// SPDX-License-Identifier: Apache-2.0
// What pinfeed.h's copies without a daemon do with their arguments, over the stand-in driver.
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/cuda/device_memory.h"
#include "pinfeed/pinfeed.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

Status StatusOfCall(pf_result result) {
  return result == PF_OK ? OkStatus() : Status(static_cast<Code>(result), pf_last_error());
}

class ClientCopierTest : public ::testing::Test {
 protected:
  ClientCopierTest() : device_(*CudaDevice::Open(0)), memory_(*DeviceMemory::Allocate(device_, 4096)) {
    pf_copier_options options;
    pf_copier_options_init(&options, sizeof(options));
    EXPECT_EQ(pf_copier_open(&options, &copier_), PF_OK) << pf_last_error();
  }
  ~ClientCopierTest() override { pf_copier_close(copier_); }

  Status Copy(const pf_host_copy& copy) {
    return StatusOfCall(pf_copy_to_device(copier_, &copy, 1, nullptr, 0, nullptr));
  }
  void* target() const {
    return reinterpret_cast<void*>(memory_.address());  // NOLINT(performance-no-int-to-ptr)
  }

  const std::shared_ptr<const CudaDevice> device_;
  const DeviceMemory memory_;
  pf_copier* copier_ = nullptr;
  const std::array<uint8_t, 16> source_{1, 2, 3};
};

TEST_F(ClientCopierTest, CopiesAndTellsTheStreamsState) {
  uint64_t reading = 9;
  const pf_host_copy copy{source_.data(), 3, target(), 512};
  ASSERT_EQ(pf_copy_to_device(copier_, &copy, 1, nullptr, 1, &reading), PF_OK);
  EXPECT_EQ(reading, 0U);
  const auto scope = device_->Enter();
  ASSERT_EQ(device_->driver().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  const auto* const bytes = static_cast<const uint8_t*>(target());
  EXPECT_EQ((std::vector<int>{bytes, bytes + 4}), (std::vector<int>{1, 2, 3, 0}));
  pf_stream_state state = PF_STREAM_CAPTURING;
  ASSERT_EQ(pf_copier_stream_state(copier_, nullptr, &state), PF_OK);
  EXPECT_EQ(state, PF_STREAM_IDLE);
  EXPECT_EQ(pf_copy_to_device(copier_, nullptr, 0, nullptr, 0, nullptr), PF_OK);
}

TEST_F(ClientCopierTest, WrongArgumentsAreNamed) {
  const auto refused = [](const char* why) { return StatusIs(Code::kInvalidArgument, HasSubstr(why)); };
  EXPECT_THAT(Copy({source_.data(), 3, target(), 2}), refused("copies[0] of 3 bytes: its span is less"));
  EXPECT_THAT(Copy({nullptr, 3, target(), 3}), refused("its source is NULL"));
  EXPECT_THAT(Copy({source_.data(), 3, nullptr, 3}), refused("its target is NULL"));
  EXPECT_THAT(Copy({source_.data(), UINT64_MAX, target(), UINT64_MAX}), refused("address space"));
  EXPECT_THAT(Copy({nullptr, 0, target(), UINT64_MAX}), refused("address space"));
  EXPECT_THAT(StatusOfCall(pf_copy_to_device(copier_, nullptr, 1, nullptr, 0, nullptr)), refused("copies"));
  EXPECT_THAT(StatusOfCall(pf_copy_to_device(nullptr, nullptr, 0, nullptr, 0, nullptr)), refused("copier"));
  EXPECT_THAT(StatusOfCall(pf_copier_stream_state(copier_, nullptr, nullptr)), refused("state is NULL"));
  const std::vector<pf_host_copy> sum(3, pf_host_copy{nullptr, 0, target(), UINT64_MAX / 4 * 2});
  EXPECT_THAT(StatusOfCall(pf_copy_to_device(copier_, sum.data(), 3, nullptr, 0, nullptr)),
              refused("copies[2]"));
}

TEST_F(ClientCopierTest, OptionsBeyondReasonAreRefused) {
  pf_copier* copier = nullptr;
  pf_copier_options options;
  EXPECT_THAT(StatusOfCall(pf_copier_open(nullptr, &copier)), StatusIs(Code::kInvalidArgument));
  pf_copier_options_init(&options, sizeof(options));
  EXPECT_THAT(StatusOfCall(pf_copier_open(&options, nullptr)), StatusIs(Code::kInvalidArgument));
  options.threads = 5000;
  EXPECT_THAT(StatusOfCall(pf_copier_open(&options, &copier)),
              StatusIs(Code::kInvalidArgument, HasSubstr("options.threads is 5000")));
  options.threads = 1;
  options.ring_bytes = UINT64_MAX;
  EXPECT_THAT(StatusOfCall(pf_copier_open(&options, &copier)),
              StatusIs(Code::kInvalidArgument, HasSubstr("options.ring_bytes")));
  options.ring_bytes = 1;  // one slot
  options.device = 5;
  EXPECT_THAT(StatusOfCall(pf_copier_open(&options, &copier)),
              StatusIs(Code::kInvalidArgument, HasSubstr("there is no GPU 5")));
  EXPECT_EQ(copier, nullptr);
  options.device = 0;
  ASSERT_EQ(pf_copier_open(&options, &copier), PF_OK);
  pf_copier_close(copier);
  pf_copier_close(nullptr);
}

TEST_F(ClientCopierTest, ForkedChildIsRefusedAndMayClose) {
  const int exit_status = ExitStatusOfFork([&] {
    const bool refused = Copy({source_.data(), 3, target(), 3}).code() == Code::kFailedPrecondition;
    pf_copier_close(copier_);
    return refused ? 7 : 1;
  });
  EXPECT_EQ(exit_status, 7);
  EXPECT_OK(Copy({source_.data(), 3, target(), 3}));
}

}  // namespace
}  // namespace pinfeed
