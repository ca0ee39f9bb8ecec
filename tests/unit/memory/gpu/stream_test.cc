// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/stream.h"

#include <memory>
#include <utility>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

TEST(StreamTest, OwnersDestroyWithoutACurrentContext) {
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const CudaDevice> device, CudaDevice::Open(0));
  const CudaDriver& driver = device->driver();
  CUstream stream = nullptr;
  CUevent event = nullptr;
  {
    const auto scope = device->Enter();
    ASSERT_EQ(driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  }
  {
    UniqueCudaStream first({device.get(), stream});
    UniqueCudaEvent its_event({device.get(), event});
    const UniqueCudaStream second = std::move(first);
    const UniqueCudaEvent moved_event = std::move(its_event);
    const auto scope = device->Enter();
    EXPECT_EQ(driver.cuEventRecord(moved_event.get().native, second.get().native), CUDA_SUCCESS);
  }
  const auto scope = device->Enter();
  EXPECT_EQ(driver.cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace pinfeed
