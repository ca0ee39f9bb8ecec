// SPDX-License-Identifier: Apache-2.0
// The stand-in driver keeps what its header promises: everything that the tests of the GPU path rest on.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "client/kernels/convert_image.h"
#include "common/cuda/device_memory.h"
#include "tests/support/testing.h"
#include "tests/unit/memory/gpu/stand_in_peer.h"

namespace pinfeed {
namespace {

using ::testing::ElementsAreArray;

constexpr uint64_t kPage = uint64_t{2} << 20;

// A device whose context is current, as every caller of the driver has it.
class StandInCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(device_, CudaDevice::Open(0));
    ASSERT_EQ(device_->name(), "Stand-in GPU") << "a real driver was loaded";
    driver_ = &device_->driver();
    ASSERT_OK_AND_ASSIGN(scope_, device_->Enter());
  }

  CUstream NewStream() {
    CUstream stream = nullptr;
    EXPECT_EQ(driver_->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    return stream;
  }
  CUdeviceptr NewMemory(uint64_t bytes) {
    CUdeviceptr memory = 0;
    EXPECT_EQ(driver_->cuMemAlloc(&memory, bytes), CUDA_SUCCESS);
    return memory;
  }
  template <typename T>
  std::vector<T> ReadBack(CUdeviceptr from, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(driver_->cuMemcpyDtoH(values.data(), from, count * sizeof(T)), CUDA_SUCCESS);
    return values;
  }

  std::shared_ptr<const CudaDevice> device_;
  const CudaDriver* driver_ = nullptr;
  CudaScope scope_;
};

TEST_F(StandInCudaTest, DescriptorCarriesMemoryThatOutlivesItsMaker) {
  UniqueFd fd;
  const uint64_t sent = 0x1122334455667788;
  {
    ASSERT_OK_AND_ASSIGN(const DeviceMemory memory, DeviceMemory::Create(device_, 1));
    EXPECT_EQ(memory.bytes(), kPage);
    ASSERT_EQ(driver_->cuMemcpyHtoD(memory.address(), &sent, sizeof sent), CUDA_SUCCESS);
    ASSERT_OK_AND_ASSIGN(fd, memory.Export());
  }
  const Peer peer("import");
  peer.SendFd(fd.get());
  uint64_t read = 0;
  ASSERT_EQ(::read(peer.socket(), &read, sizeof read), ssize_t{sizeof read});
  EXPECT_EQ(read, sent);
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(StandInCudaTest, HandleOpensMemoryInAnotherProcessAlone) {
  const CUdeviceptr memory = NewMemory(sizeof(uint64_t));
  const uint64_t before = 41;
  ASSERT_EQ(driver_->cuMemcpyHtoD(memory, &before, sizeof before), CUDA_SUCCESS);
  CUipcMemHandle handle{};
  ASSERT_EQ(driver_->cuIpcGetMemHandle(&handle, memory), CUDA_SUCCESS);
  const Peer peer("open");
  ASSERT_EQ(::write(peer.socket(), &handle, sizeof handle), ssize_t{sizeof handle});
  EXPECT_EQ(peer.Wait(), 0);
  EXPECT_THAT(ReadBack<uint64_t>(memory, 1), ElementsAre(42));
  CUdeviceptr own = 0;
  EXPECT_EQ(driver_->cuIpcOpenMemHandle(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
            CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver_->cuMemFree(memory), CUDA_SUCCESS);
}

TEST_F(StandInCudaTest, ProcessEndsWhileItsStreamsWork) {
  EXPECT_EQ(Peer("leave-busy").Wait(), 0);
}

TEST_F(StandInCudaTest, HostDescriptorIsNoDeviceMemory) {
  const UniqueFd fd(::memfd_create("host", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(fd.get(), kPage), 0);
  EXPECT_THAT(DeviceMemory::Import(device_, fd.get(), kPage, true),
              StatusIs(Code::kInternal, HasSubstr("CUDA_ERROR_INVALID_VALUE")));
}

TEST_F(StandInCudaTest, WriteThroughReadOnlyMappingFaults) {
  ASSERT_OK_AND_ASSIGN(const DeviceMemory memory, DeviceMemory::Create(device_, kPage));
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, memory.Export());
  ASSERT_OK_AND_ASSIGN(const DeviceMemory view, DeviceMemory::Import(device_, fd.get(), kPage, true));
  auto* const writable =
      reinterpret_cast<volatile char*>(memory.address());  // NOLINT(performance-no-int-to-ptr)
  auto* const readable =
      reinterpret_cast<volatile char*>(view.address());  // NOLINT(performance-no-int-to-ptr)
  *writable = 7;
  EXPECT_EQ(*readable, 7);
  EXPECT_DEATH(*readable = 8, "");
  const char byte = 0;
  EXPECT_EQ(driver_->cuMemcpyHtoD(view.address(), &byte, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StandInCudaTest, MisuseOfAddressesIsRefused) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle memory = 0;
  EXPECT_EQ(driver_->cuMemCreate(&memory, kPage + 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_->cuMemCreate(&memory, device_->total_bytes() + kPage, &properties, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(driver_->cuMemCreate(&memory, kPage, &properties, 0), CUDA_SUCCESS);
  int fd = -1;
  EXPECT_EQ(driver_->cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE)
      << "not made for it";
  CUdeviceptr space = 0;
  ASSERT_EQ(driver_->cuMemAddressReserve(&space, 2 * kPage, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemMap(space + 2 * kPage, kPage, 0, memory, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver_->cuMemUnmap(space, kPage), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(driver_->cuMemMap(space, kPage, 0, memory, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemMap(space, kPage, 0, memory, 0), CUDA_ERROR_INVALID_VALUE);
  const char byte = 0;
  EXPECT_EQ(driver_->cuMemcpyHtoD(space, &byte, 1), CUDA_ERROR_INVALID_VALUE) << "no rights yet";
  EXPECT_EQ(driver_->cuMemAddressFree(space, 2 * kPage), CUDA_ERROR_INVALID_VALUE) << "still mapped";
  EXPECT_EQ(driver_->cuMemUnmap(space, kPage), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemAddressFree(space, kPage), CUDA_ERROR_INVALID_VALUE) << "not all that was reserved";
  EXPECT_EQ(driver_->cuMemAddressFree(space, 2 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemRelease(memory), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemRelease(memory), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StandInCudaTest, MemoryIsCountedUntilTheLastMappingGoes) {
  const auto free_bytes = [&] {
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(driver_->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  };
  const size_t before = free_bytes();
  {
    ASSERT_OK_AND_ASSIGN(const DeviceMemory memory, DeviceMemory::Create(device_, 3 * kPage));
    EXPECT_EQ(free_bytes(), before - 3 * kPage);
  }
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(StandInCudaTest, CallsWithoutContextAreRefused) {
  scope_.reset();
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  char byte = 0;
  EXPECT_EQ(driver_->cuMemAlloc(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver_->cuMemcpyHtoD(memory, &byte, 1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver_->cuMemHostRegister(&byte, 1, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver_->cuStreamCreateWithPriority(&stream, 0, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver_->cuEventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver_->cuMemAddressReserve(&memory, kPage, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemAddressFree(memory, kPage), CUDA_SUCCESS);
}

// What a copy engine and its client do: bytes, then the word that announces them.
TEST_F(StandInCudaTest, WordIsWrittenAfterTheCopyBeforeIt) {
  constexpr size_t kWords = 1 << 17;
  std::vector<uint64_t> source(kWords);
  std::iota(source.begin(), source.end(), 1);
  alignas(8) uint64_t announced = 0;
  ASSERT_OK_AND_ASSIGN(const HostRegistration pinned,
                       HostRegistration::Create(device_, source.data(), kWords * sizeof(uint64_t)));
  ASSERT_OK_AND_ASSIGN(const HostRegistration page,
                       HostRegistration::Create(device_, &announced, sizeof announced));
  const CUdeviceptr memory = NewMemory(kWords * sizeof(uint64_t));
  const CUstream stream = NewStream();
  auto* const seen = reinterpret_cast<uint64_t*>(memory);  // NOLINT(performance-no-int-to-ptr)
  for (uint64_t round = 1; round <= 20; ++round) {
    source.back() = round;
    ASSERT_EQ(driver_->cuMemcpyHtoDAsync(memory, source.data(), kWords * sizeof(uint64_t), stream),
              CUDA_SUCCESS);
    ASSERT_EQ(driver_->cuStreamWriteValue64(stream, page.device_address(), round, 0), CUDA_SUCCESS);
    while (std::atomic_ref(announced).load(std::memory_order_acquire) != round) std::this_thread::yield();
    ASSERT_EQ(seen[kWords - 1], round);
  }
  EXPECT_EQ(driver_->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuStreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver_->cuMemFree(memory), CUDA_SUCCESS);
}

TEST_F(StandInCudaTest, EventIsNotReadyUntilItsPointIsReached) {
  constexpr uint64_t kBytes = uint64_t{16} << 20;
  const CUdeviceptr memory = NewMemory(2 * kBytes);
  const CUstream stream = NewStream();
  CUevent event = nullptr;
  ASSERT_EQ(driver_->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuEventQuery(event), CUDA_SUCCESS) << "never recorded";
  // A thread may be kept from the processor until its queue is done: then it tries again.
  CUresult early = CUDA_SUCCESS;
  while (early == CUDA_SUCCESS) {
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(driver_->cuMemcpyDtoDAsync(memory + kBytes, memory, kBytes, stream), CUDA_SUCCESS);
    }
    ASSERT_EQ(driver_->cuEventRecord(event, stream), CUDA_SUCCESS);
    early = driver_->cuEventQuery(event);
  }
  EXPECT_EQ(early, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(driver_->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemFree(memory), CUDA_SUCCESS);
}

TEST_F(StandInCudaTest, HostMemoryIsRegisteredOnce) {
  std::vector<char> memory(8192);
  ASSERT_EQ(driver_->cuMemHostRegister(memory.data(), 8192, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemHostRegister(memory.data() + 8191, 1, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(driver_->cuMemHostUnregister(memory.data() + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(driver_->cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuMemHostRegister(nullptr, 4096, 0), CUDA_ERROR_INVALID_VALUE);
}

struct Layout {
  bool source_chw;
  bool out_chw;
};

// Two samples of 2 x 3 pixels. By hand: value 10 * pixel + channel; the table adds 100 * (channel + 1).
class StandInCudaKernelTest : public StandInCudaTest {
 protected:
  template <typename Element>
  std::vector<Element> Convert(const char* kernel, uint32_t channels, Layout layout,
                               std::vector<uint8_t> source, std::vector<uint8_t> marks) {
    const CUdeviceptr from = NewMemory(source.size());
    const CUdeviceptr mark = NewMemory(marks.size());
    const size_t elements = 2 * 2 * 3 * channels;
    const CUdeviceptr to = NewMemory(elements * sizeof(Element));
    EXPECT_EQ(driver_->cuMemcpyHtoD(from, source.data(), source.size()), CUDA_SUCCESS);
    EXPECT_EQ(driver_->cuMemcpyHtoD(mark, marks.data(), marks.size()), CUDA_SUCCESS);
    ConvertImage work{};
    work.source = reinterpret_cast<const uint8_t*>(from);  // NOLINT(performance-no-int-to-ptr)
    work.mark = reinterpret_cast<const uint8_t*>(mark);    // NOLINT(performance-no-int-to-ptr)
    work.out = reinterpret_cast<void*>(to);                // NOLINT(performance-no-int-to-ptr)
    work.sample_stride = source.size() / 2;
    work.samples = 2;
    work.height = 2;
    work.width = 3;
    work.channels = channels;
    work.source_chw = layout.source_chw ? 1 : 0;
    work.out_chw = layout.out_chw ? 1 : 0;
    for (uint32_t c = 0; c < 3; ++c) {
      for (uint32_t i = 0; i < 256; ++i) work.table[256 * c + i] = i + 100 * (c + 1);
    }
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    EXPECT_EQ(driver_->cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    EXPECT_EQ(driver_->cuModuleGetFunction(&function, module, "ConvertImage3"), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(driver_->cuModuleGetFunction(&function, module, kernel), CUDA_SUCCESS);
    void* parameters[] = {&work};
    EXPECT_EQ(
        driver_->cuLaunchKernel(function, 1, 1, 1, kConvertThreads, 1, 1, 0, nullptr, parameters, nullptr),
        CUDA_SUCCESS);
    work = {};  // the launch took its own copy
    std::vector<Element> out = ReadBack<Element>(to, elements);
    for (const CUdeviceptr memory : {from, mark, to}) EXPECT_EQ(driver_->cuMemFree(memory), CUDA_SUCCESS);
    return out;
  }

  const std::vector<uint8_t> hwc_ = {
      0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42, 50, 51, 52,  // sample 0
      0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42, 50, 51, 52,  // sample 1, the same
  };
  const std::vector<uint8_t> chw_ = {
      0, 10, 20, 30, 40, 50, 1, 11, 21, 31, 41, 51, 2, 12, 22, 32, 42, 52,  //
      0, 10, 20, 30, 40, 50, 1, 11, 21, 31, 41, 51, 2, 12, 22, 32, 42, 52,
  };
  // Sample 0 as it is, sample 1 mirrored.
  const std::vector<int> hwc_out_ = {
      100, 201, 302, 110, 211, 312, 120, 221, 322, 130, 231, 332, 140, 241, 342, 150, 251, 352,  //
      120, 221, 322, 110, 211, 312, 100, 201, 302, 150, 251, 352, 140, 241, 342, 130, 231, 332,
  };
  const std::vector<int> chw_out_ = {
      100, 110, 120, 130, 140, 150, 201, 211, 221, 231, 241, 251, 302, 312, 322, 332, 342, 352,  //
      120, 110, 100, 150, 140, 130, 221, 211, 201, 251, 241, 231, 322, 312, 302, 352, 342, 332,
  };
};

TEST_F(StandInCudaKernelTest, ConvertsEveryLayoutMirroredOrNot) {
  const std::vector<uint8_t> marks = {0, 1};
  EXPECT_THAT(Convert<uint32_t>("ConvertImage4", 3, {false, false}, hwc_, marks), ElementsAreArray(hwc_out_));
  EXPECT_THAT(Convert<uint32_t>("ConvertImage4", 3, {false, true}, hwc_, marks), ElementsAreArray(chw_out_));
  EXPECT_THAT(Convert<uint32_t>("ConvertImage4", 3, {true, false}, chw_, marks), ElementsAreArray(hwc_out_));
  EXPECT_THAT(Convert<uint32_t>("ConvertImage4", 3, {true, true}, chw_, marks), ElementsAreArray(chw_out_));
}

TEST_F(StandInCudaKernelTest, WritesElementsOfOneAndTwoBytes) {
  const std::vector<uint8_t> marks = {0, 1};
  EXPECT_THAT(Convert<uint16_t>("ConvertImage2", 3, {false, true}, hwc_, marks), ElementsAreArray(chw_out_));
  std::vector<int> low(chw_out_);
  for (int& value : low) value %= 256;
  EXPECT_THAT(Convert<uint8_t>("ConvertImage1", 3, {false, true}, hwc_, marks), ElementsAreArray(low));
}

TEST_F(StandInCudaKernelTest, MarkedSampleBecomesZerosAndOneChannelIsEnough) {
  const std::vector<uint8_t> grey = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6};
  EXPECT_THAT(Convert<uint16_t>("ConvertImage2", 1, {false, true}, grey, {1, 2}),
              ElementsAre(103, 102, 101, 106, 105, 104, 0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace pinfeed
