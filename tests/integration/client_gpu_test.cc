// SPDX-License-Identifier: Apache-2.0
// The C++ interface on a GPU: a real daemon in another process, and the stand-in for the driver in both.
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/cuda/device.h"
#include "pinfeed/pinfeed.hpp"
#include "tests/support/daemon_fixture.h"
#include "tests/support/testing.h"
#include "tests/unit/dataset/npy_file.h"

namespace pinfeed {
namespace {

constexpr uint32_t kBatch = 4;
constexpr size_t kSamples = 40;
constexpr size_t kPixels = 12;  // of a sample

void WriteNpy(const std::filesystem::path& path, const char* descr, const char* shape,
              const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << NpyHeaderBytes(descr, shape, false) << bytes;
}

class ClientGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<uint8_t> pixels(kSamples * kPixels);
    std::iota(pixels.begin(), pixels.end(), uint8_t{0});
    std::vector<int64_t> labels(kSamples);
    std::iota(labels.begin(), labels.end(), 100);
    WriteNpy(dir_ / "image.npy", "|u1", "(40, 3, 2, 2)", RawBytes(pixels));
    WriteNpy(dir_ / "label.npy", "<i8", "(40,)", RawBytes(labels));
    const ScopedEnv search("LD_LIBRARY_PATH", PINFEED_TEST_STAND_IN);
    daemon_ = DaemonProcess::Serve(dir_.path(),
                                   {"--gpus", "on", "--pinned-bytes", "64MiB", "--gpu-bytes", "64MiB"});
    ASSERT_OK_AND_ASSIGN(gpu_, CudaDevice::Open(0));
    ASSERT_OK_AND_ASSIGN(scope_, gpu_->Enter());
    ASSERT_EQ(driver().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  }

  Feed Open(const std::string& more, int device = 0) const {
    const FeedOptions options{.address = (dir_ / "pinfeed.sock").string(), .device = device};
    return Feed(R"({"dataset": {"path": ")" + dir_.path().string() + R"("}, "batch_size": 4)" + more + "}",
                options);
  }
  const CudaDriver& driver() const { return gpu_->driver(); }
  void* Allocate(uint64_t bytes) const {
    CUdeviceptr memory = 0;
    EXPECT_EQ(driver().cuMemAlloc(&memory, bytes), CUDA_SUCCESS);
    return reinterpret_cast<void*>(memory);  // NOLINT(performance-no-int-to-ptr)
  }
  template <typename T>
  std::vector<T> Read(const void* memory, size_t elements) const {
    std::vector<T> values(elements);
    EXPECT_EQ(
        driver().cuMemcpyDtoH(values.data(), reinterpret_cast<CUdeviceptr>(memory), elements * sizeof(T)),
        CUDA_SUCCESS);
    return values;
  }

  const TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::shared_ptr<const CudaDevice> gpu_;
  CudaScope scope_;
  CUstream stream_ = nullptr;
};

constexpr char kHalves[] = R"(, "transforms": [{"normalize": {"mean": [0], "std": [0.5]}}])";

TEST_F(ClientGpuTest, OutputsAreWrittenInTheOrderOfAStream) {
  Feed feed = Open(kHalves);
  EXPECT_EQ(feed.Info().device, 0);
  EXPECT_STREQ(feed.Info().backend, "vmm-fd");
  const std::vector<TensorView> outputs = feed.Outputs();
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_STREQ(outputs[0].name(), "image");
  EXPECT_EQ(outputs[0].dtype(), PF_FLOAT32);
  EXPECT_THAT(outputs[0].shape(), ElementsAre(kBatch, 3, 2, 2));
  EXPECT_EQ(outputs[0].bytes(), kBatch * kPixels * sizeof(float));
  EXPECT_EQ(outputs[0].data(), nullptr);
  EXPECT_EQ(outputs[1].dtype(), PF_INT64);
  EXPECT_EQ(outputs[1].device(), 0);
  auto* const images = static_cast<float*>(Allocate(outputs[0].bytes()));
  auto* const labels = static_cast<int64_t*>(Allocate(outputs[1].bytes()));
  Feed host = Open(kHalves, -1);
  for (int i = 0; i < 20; ++i) {  // more than there are slots
    Batch batch = *feed.Next();
    batch.Write(stream_, {images, labels});
    EXPECT_EQ(batch.get(), nullptr);
    ASSERT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
    const Batch expected = *host.Next();
    const auto* const pixels = expected["image"].data_as<float>();
    EXPECT_EQ(Read<float>(images, kBatch * kPixels), std::vector<float>(pixels, pixels + kBatch * kPixels));
    const auto* const numbers = expected["label"].data_as<int64_t>();
    EXPECT_EQ(Read<int64_t>(labels, kBatch), std::vector<int64_t>(numbers, numbers + kBatch));
  }
}

TEST_F(ClientGpuTest, HostBatchesAreWrittenAtOnce) {
  Feed feed = Open("", -1);
  const std::vector<TensorView> outputs = feed.Outputs();
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(outputs[0].device(), -1);
  std::vector<uint8_t> images(outputs[0].bytes());
  std::vector<int64_t> labels(kBatch);
  feed.Next()->Release();
  feed.Next()->Write(nullptr, {images.data(), labels.data()});
  EXPECT_THAT(labels, ElementsAre(104, 105, 106, 107));
  EXPECT_EQ(images[0], kBatch * kPixels);
}

TEST_F(ClientGpuTest, BatchThatCannotBeWrittenStaysOnesOwn) {
  Feed feed = Open("");
  Batch batch = *feed.Next();
  try {
    batch.Write(stream_, {});
    FAIL() << "no output was given, and no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PF_INVALID_ARGUMENT);
  }
  pf_batch_retain(batch.get());
  EXPECT_THROW(batch.ReleaseOn(stream_), Error);
  pf_batch_release(batch.get());
  EXPECT_THAT(Read<int64_t>(batch["label"].data(), kBatch), ElementsAre(100, 101, 102, 103));
  batch.ReleaseOn(stream_);
  EXPECT_EQ(batch.get(), nullptr);
}

TEST_F(ClientGpuTest, SlotsAreReadInPlaceAndGoBackInTheOrderOfAStream) {
  Feed feed = Open("");
  auto* const kept = static_cast<int64_t*>(Allocate(kSamples * sizeof(int64_t)));
  for (size_t i = 0; i < kSamples; i += kBatch) {
    Batch batch = *feed.Next();
    const TensorView labels = batch["label"];
    EXPECT_EQ(labels.device(), 0);
    ASSERT_EQ(
        driver().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(kept + i),
                                   reinterpret_cast<CUdeviceptr>(labels.data()), labels.bytes(), stream_),
        CUDA_SUCCESS);
    batch.ReleaseOn(stream_);
  }
  ASSERT_EQ(driver().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  std::vector<int64_t> all(kSamples);
  std::iota(all.begin(), all.end(), 100);
  EXPECT_EQ(Read<int64_t>(kept, kSamples), all);
}

// What the headers say of the last batch of a session that has ended: it waits, and nothing is unmapped below
// work that runs.
TEST_F(ClientGpuTest, LastBatchOfAClosedFeedWaitsForItsStream) {
  constexpr uint64_t kLongBytes = uint64_t{16} << 20;
  std::optional<Feed> feed = Open("");
  Batch batch = *feed->Next();
  const auto label = reinterpret_cast<CUdeviceptr>(batch["label"].data());
  feed.reset();
  const auto busy = reinterpret_cast<CUdeviceptr>(Allocate(2 * kLongBytes));
  auto* const kept = static_cast<int64_t*>(Allocate(kBatch * sizeof(int64_t)));
  for (int i = 0; i < 16; ++i)
    ASSERT_EQ(driver().cuMemcpyDtoDAsync(busy + kLongBytes, busy, kLongBytes, stream_), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(kept), label, kBatch * sizeof(int64_t),
                                       stream_),
            CUDA_SUCCESS);
  batch.ReleaseOn(stream_);
  EXPECT_THAT(Read<int64_t>(kept, kBatch), ElementsAre(100, 101, 102, 103));
}

TEST_F(ClientGpuTest, GpuThatIsNotThereIsRefused) {
  try {
    Open("", 7);
    FAIL() << "there is one GPU";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("options.device is 7"));
  }
}

}  // namespace
}  // namespace pinfeed
