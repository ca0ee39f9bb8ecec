// SPDX-License-Identifier: Apache-2.0
// Feeds whose images the client decodes: a real daemon in another process, the client's own threads and ring,
// and a decoder that gives exactly the workers' pixels in place of a GPU's.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/src/base/client_log.h"
#include "client/src/feed/feed.h"
#include "tests/support/cpu_decode_engine.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/log_capture.h"
#include "tests/support/testing.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {

inline constexpr size_t kImages = 60;
inline constexpr char kTransforms[] =
    R"(, "transforms": [{"random_resized_crop": {"size": [40, 32]}}, {"random_horizontal_flip": {}},
       {"normalize": {"mean": [0.5], "std": [0.25]}}])";
inline constexpr char kGpu[] = R"(, "decode": "DECODE_GPU")";

// The tensors of one batch, by the order of the outputs; packed ones as their rows in order.
using Tensors = std::vector<std::vector<std::byte>>;

inline size_t CountThreads() {
  size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    count += task.path().empty() ? 0 : 1;
  return count;
}

class ClientDecodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < kImages; ++i) {
      JpegOptions options{.width = 60 + static_cast<int>(i), .height = 50};
      options.progressive = i % 10 == 9;  // which the workers decode
      dir_.Write("photos/class" + std::to_string(i % 2) + "/" + std::to_string(100 + i) + ".jpg",
                 MakeJpeg(options, static_cast<uint32_t>(i)));
    }
    Serve();
  }

  // What the library has said so far, its threads too.
  std::string Log() const {
    PassOnLog();
    std::string all;
    for (const std::string& line : log_.lines) all += line + "\n";
    return all;
  }

  void Serve(const std::string& workers = "2") {
    daemon_ = DaemonProcess::Serve(dir_.path(), {"--workers", workers});
  }

  // `engine`: null for a client without a GPU.
  FeedOptions Options(const std::string& more, std::shared_ptr<CpuDecodeEngine> engine) const {
    FeedOptions options;
    options.session.address = (dir_ / "pinfeed.sock").string();
    options.session.request.spec_json = R"({"dataset": {"path": ")" + (dir_ / "photos").string() +
                                        R"("}, "batch_size": 8, "order": "SHUFFLE", "seed": 3)" +
                                        kTransforms + more + "}";
    options.session.request.client_name = "decode";
    if (engine != nullptr) {
      options.session.device = 0;
      options.session.request.gpu_uuid = "GPU-of-the-test";
      options.session.open_decoder = [engine] {
        return Result<std::shared_ptr<DecodeEngine>>(std::shared_ptr<DecodeEngine>(engine));
      };
    }
    options.reconnect_timeout = std::chrono::seconds(30);
    return options;
  }
  std::unique_ptr<Feed> Open(const std::string& more = "",
                             std::shared_ptr<CpuDecodeEngine> engine = nullptr) const {
    return Feed::Open(Options(more, std::move(engine))).value();
  }

  static Result<Tensors> WriteOut(Batch& batch) {
    const FeedOffer& offer = batch.session().offer();
    const BatchDescriptor descriptor = batch.descriptor();
    Tensors tensors;
    std::vector<void*> pointers;
    for (const OfferedOutput& output : offer.outputs) {
      uint64_t bytes = *output.spec.SampleBytes() * descriptor.samples;
      if (output.spec.extents) {
        std::vector<int64_t> offsets(descriptor.samples + 1);
        RETURN_IF_ERROR(batch.RowOffsets(pointers.size(), offsets));
        bytes = static_cast<uint64_t>(offsets.back()) * output.spec.RowBytes();
      }
      pointers.push_back(tensors.emplace_back(bytes + 1, std::byte{0xA5}).data());
    }
    RETURN_IF_ERROR(batch.Write(pointers, nullptr));
    for (std::vector<std::byte>& tensor : tensors) {
      EXPECT_EQ(tensor.back(), std::byte{0xA5});
      tensor.pop_back();
    }
    return tensors;
  }
  static Result<Tensors> Next(Feed& feed) {
    ASSIGN_OR_RETURN(Batch* const batch, feed.Next(std::chrono::seconds(30)));
    return WriteOut(*batch);
  }
  static void ExpectSame(Feed& one, Feed& other, size_t batches) {
    for (size_t i = 0; i < batches; ++i) {
      ASSERT_OK_AND_ASSIGN(const Tensors a, Next(one));
      ASSERT_OK_AND_ASSIGN(const Tensors b, Next(other));
      ASSERT_EQ(a, b) << "batch " << i;
    }
  }

  const TempDir dir_;
  std::unique_ptr<DaemonProcess> daemon_;

 private:
  LogCapture log_;
};

}  // namespace pinfeed
